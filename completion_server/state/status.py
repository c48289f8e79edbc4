"""The status of the shared state, as `AdminService.GetStatus` reports it to operators."""

from dataclasses import dataclass


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
