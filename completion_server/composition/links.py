"""What the parent and a front end tell each other, and the pipe between them. Part of the composition root.

The parent owns the engine and what there is one of: K, the admin listener, the metrics page. Front ends take requests.
"""

import asyncio
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from completion_server.composition.app import FrontEnd
from completion_server.config import Config
from completion_server.engine.interface import EngineInfo
from completion_server.serving.service import LoadSnapshot
from completion_server.state.status import CacheStatus, ReplicationStatus

INTERFACE = 1
"""Version of this module's messages and of what is shared beside them. A front end of another one is not started."""
PROCESSES = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a front end needs to know at its start."""

    interface: int
    version: str
    """The version of the code that the parent may start; "" for any with the same interface."""
    config: Config
    front_end: FrontEnd


@dataclass(frozen=True, slots=True)
class EngineUp:
    """To a front end: the engine is ready."""

    share: Any
    """What attaches to it."""
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class EngineDown:
    """To a front end: the engine has died, and another one will follow."""

    remaining_start_s: float | None


@dataclass(frozen=True, slots=True)
class Drain:
    """To a front end: let accepted requests finish, then end."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """To a front end."""

    level: str


@dataclass(frozen=True, slots=True)
class AskMetrics:
    """To a front end, which answers with `Metrics`."""


@dataclass(frozen=True, slots=True)
class Serving:
    """From a front end: it serves."""

    address: str
    http_address: str
    prompt_template: str


@dataclass(frozen=True, slots=True)
class Refused:
    """From a front end: it can't start, and why; another try would fail, too."""

    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """From a front end, twice a second."""

    load: LoadSnapshot
    ended: dict[str, int]
    replication: ReplicationStatus | None
    cache: CacheStatus | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """From a front end: its metrics, in Prometheus' text format."""

    text: str


ToFrontEnd = EngineUp | EngineDown | Drain | SetLogLevel | AskMetrics
FromFrontEnd = Serving | Refused | Report | Metrics
Received = TypeVar("Received")
Sent = TypeVar("Sent")


class Link(Generic[Received, Sent]):
    """One end of a pipe. Sending never waits for the other end, unless that has not read for long."""

    def __init__(self, pipe: Connection) -> None:
        """Own `pipe`."""
        self._pipe = pipe

    def watch(self, receive: Callable[[Received], None], closed: Callable[[], None]) -> None:
        """Have messages received in the running event loop, and its end told once."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                self.close()
                closed()
                return
            receive(message)

        loop.add_reader(self._pipe.fileno(), read)

    def send(self, message: Sent) -> None:
        """Send a message; it is lost if the other end is gone, whose end is told in `watch`."""
        try:
            self._pipe.send(message)
        except OSError:  # also BrokenPipeError
            return

    def close(self) -> None:
        """Close this end."""
        if not self._pipe.closed:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._pipe.close()
