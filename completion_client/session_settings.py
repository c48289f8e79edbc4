"""How a session reconnects and reads, its back-off, and the interfaces of those that hear its events."""

import random
from dataclasses import dataclass
from typing import Protocol

from completion.v1 import completion_pb2 as pb
from completion_client.errors import ServiceError


class RequestListener(Protocol):
    """Receives the events of one request. Either `on_end` or `on_error` is called, once, as the last of them."""

    def on_text(self, text: str) -> None:
        """Take text that continues the completion."""
        ...

    def on_end(self, end: pb.End) -> None:
        """Take the end, which may bring the last text along."""
        ...

    def on_error(self, error: ServiceError) -> None:
        """Take the loss of the stream before the end."""
        ...


class StreamListener(Protocol):
    """Receives the losses of a stream."""

    def on_lost(self, error: ServiceError) -> None:
        """Take the reason of a loss."""
        ...

    def on_reconnected(self, away_s: float) -> None:
        """Take the time from a loss to the first sign of the server on the new stream."""
        ...


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session reconnects and reads."""

    backoff_min_s: float = 0.1
    """The first wait before a reconnect is drawn from 0 to this."""
    backoff_max_s: float = 5.0
    """The longest wait, unless the server asks for a longer one."""
    backoff_seed: str | None = None
    """Makes the waits repeatable."""
    read_interval_s: float = 0.0
    """Pause after each message read; a slow reader, for tests of servers."""


class Backoff:
    """Exponential back-off with full jitter: each wait is drawn evenly from 0 to a bound that doubles.

    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """

    __slots__ = ("_bound_s", "_random", "_settings")

    def __init__(self, settings: SessionSettings) -> None:
        """Draw the waits within the bounds of `settings`."""
        self._settings = settings
        self._bound_s = settings.backoff_min_s
        self._random = random.Random(settings.backoff_seed)

    def next_s(self) -> float:
        """Return the next wait, in seconds."""
        wait_s = self._random.uniform(0, self._bound_s)
        self._bound_s = min(self._settings.backoff_max_s, self._bound_s * 2)
        return wait_s

    def reset(self) -> None:
        """Begin anew, after a success."""
        self._bound_s = self._settings.backoff_min_s
