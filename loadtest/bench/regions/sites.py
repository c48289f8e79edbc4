"""Three servers, each behind a relay that puts a distance before it. One of them can be lost and brought back."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from loadtest.bench.common.front_end import LARGE_MODEL
from loadtest.bench.common.relay import RelayProcess
from loadtest.bench.common.server import ServerProcess
from loadtest.targets import NEAREST


class Loss(Enum):
    """How a region is lost."""

    KILL = "kill"
    """Its server is killed (SIGKILL): connections are closed, and new ones are refused."""
    SILENCE = "silence"
    """Its server is suspended (SIGSTOP): connections stay open and new ones are accepted, but nothing is answered."""


@dataclass(frozen=True, slots=True)
class Place:
    """A region and how far it is."""

    name: str
    round_trip_ms: float


class Site:
    """The server of one region, behind its distance."""

    def __init__(self, place: Place, config: Path, overrides: Sequence[str]) -> None:
        """Start it.

        Raises:
            StartError: it did not start.

        """
        self.place = place
        self._config = config
        self._overrides = (*LARGE_MODEL, f"server.region={place.name}", *overrides)
        self._server = self._start()
        self._next: ServerProcess | None = None
        try:
            self._relay = RelayProcess(self._server.ready["address"], place.round_trip_ms)
        except BaseException:
            self._server.stop()
            raise

    @property
    def address(self) -> str:
        """HOST:PORT for clients, the same after a loss."""
        return self._relay.address

    @property
    def pids(self) -> tuple[int, int]:
        """The process ids of the server and of the relay."""
        return self._server.pid, self._relay.pid

    async def lose(self, how: Loss) -> None:
        """Lose the server."""
        if how is Loss.KILL:
            os.kill(self._server.pid, signal.SIGKILL)
        else:
            await asyncio.to_thread(self._server.process.pause)

    async def prepare_return(self, how: Loss) -> None:
        """Start another server in place of a killed one. Clients can't reach it yet.

        Raises:
            StartError: it did not start.

        """
        if how is Loss.KILL:
            self._next = await asyncio.to_thread(self._start)

    async def bring_back(self, how: Loss) -> None:
        """Let clients reach the server that was prepared, or that is suspended."""
        if how is Loss.SILENCE:
            await asyncio.to_thread(self._server.process.resume)
        elif self._next is not None:
            await asyncio.to_thread(self._relay.move_to, self._next.ready["address"])
            lost, self._server, self._next = self._server, self._next, None
            lost.stop()

    def stop(self) -> None:
        """Stop the server and the relay."""
        self._relay.stop()
        for server in (self._server, self._next):
            if server is not None:
                server.stop()

    def _start(self) -> ServerProcess:
        return ServerProcess(self._config, self._overrides, self.place.name, has_metrics=True)


@contextmanager
def running_sites(places: Sequence[Place], config: Path, overrides: Sequence[str]) -> Iterator[list[Site]]:
    """Run a server at each place.

    Raises:
        StartError: one did not start.

    """
    with ExitStack() as stack, ThreadPoolExecutor(len(places)) as starters:
        futures = [starters.submit(Site, place, config, overrides) for place in places]
        found, failure = [], None
        for future in futures:
            try:
                found.append(future.result())
            except Exception as error:  # noqa: BLE001 - those that started are stopped before it is raised
                failure = error
            else:
                stack.callback(found[-1].stop)
        if failure is not None:
            raise failure
        yield found


def target_of(sites: Sequence[Site], return_spread_s: float) -> str:
    """Return the target of editors that use the nearest of the sites."""
    return f"regions={NEAREST}://{','.join(site.address for site in sites)}?return_spread_s={return_spread_s:g}"
