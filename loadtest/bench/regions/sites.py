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


class RegionSite:
    """The server of one region, behind its distance."""

    def __init__(self, place: Place, config: Path, overrides: Sequence[str], *, has_standby: bool = False) -> None:
        """Start it, with a standby for a server that is to be killed: a start takes CPU time from all others.

        Raises:
            StartError: it did not start.

        """
        self.place = place
        settings = (*LARGE_MODEL, f"server.region={place.name}", *overrides)
        with ExitStack() as stack:
            self._server = ServerProcess(config, settings, place.name, has_metrics=True)
            stack.callback(self._server.stop)
            self._standby: ServerProcess | None = None
            if has_standby:
                self._standby = ServerProcess(config, settings, f"{place.name}-standby", has_metrics=True)
                stack.callback(self._standby.stop)
            self._relay = RelayProcess(self._server.ready["address"], place.round_trip_ms)
            stack.callback(self._relay.stop)
            self._stack = stack.pop_all()

    @property
    def address(self) -> str:
        """HOST:PORT for clients, the same after a loss."""
        return self._relay.address

    async def lose(self, how: Loss) -> None:
        """Lose the server."""
        if how is Loss.KILL:
            os.kill(self._server.pid, signal.SIGKILL)
        else:
            await asyncio.to_thread(self._server.process.pause)

    async def bring_back(self, how: Loss) -> None:
        """Let clients reach the standby of a killed server, at the same address, or the server that was suspended."""
        if how is Loss.SILENCE:
            await asyncio.to_thread(self._server.process.resume)
        else:
            assert self._standby is not None, "a site whose server is killed has a standby"
            await asyncio.to_thread(self._relay.move_to, self._standby.ready["address"])

    def stop(self) -> None:
        """Stop the servers and the relay."""
        self._stack.close()


@contextmanager
def running_sites(
    places: Sequence[Place], config: Path, overrides: Sequence[str], how: Loss
) -> Iterator[list[RegionSite]]:
    """Run a server at each place, of which the first is to be lost.

    Raises:
        StartError: one did not start.

    """
    with ExitStack() as stack, ThreadPoolExecutor(len(places)) as starters:
        futures = [
            starters.submit(RegionSite, place, config, overrides, has_standby=how is Loss.KILL and place is places[0])
            for place in places
        ]
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


def target_of(sites: Sequence[RegionSite], return_spread_s: float) -> str:
    """Return the target of editors that use the nearest of the sites."""
    return f"regions={NEAREST}://{','.join(site.address for site in sites)}?return_spread_s={return_spread_s:g}"
