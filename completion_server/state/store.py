"""The interface of the store that replicas share, and its status as operators see it."""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

Arg = str | bytes | int | float


class StoreUnavailableError(Exception):
    """The store can't be reached, refused the command, or the breaker is open."""


class Store(Protocol):
    """Sends commands to Redis."""

    @property
    def is_available(self) -> bool:
        """Whether commands are sent. If not, they fail at once."""
        ...

    def call_nowait(self, *command: Arg, patience_s: float = 0.0) -> "asyncio.Future[Any]":
        """Send a command, such as ("GET", key), and return a future of its reply.

        A command may be kept for `patience_s` to be sent with others, which makes it cheaper.

        Every command names at most one key, so that it works on a Redis Cluster, and may be executed although its
        future was cancelled. Replies are bytes, integers, lists of replies or None.

        The future raises StoreUnavailableError.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """The status of the other replicas and of Redis, as one replica sees them."""

    replica_id: str
    is_redis_available: bool
    redis_failure: str
    """Why the breaker is open, "" if it is closed."""
    num_outages: int
    is_listening: bool
    """Whether messages of other replicas arrive."""
    num_received: int


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """The completion cache."""

    num_entries: int
    num_bytes: int
    num_local_hits: int
    num_shared_hits: int
    num_misses: int
