"""Drives editors while the nearest of three regions is lost and comes back, and notes what happens and when.

Each region has a server behind a relay that puts a distance before it.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.bench.runner.front_end import LARGE_MODEL
from loadtest.bench.runner.relay import Relay
from loadtest.bench.runner.schedule import started_together
from loadtest.bench.runner.server import ServerProcess
from loadtest.driving.driver import Callbacks, Driver, lead_in
from loadtest.driving.worker import client_settings_of, count_present, make_recorder, settle_memory
from loadtest.stats import RunStats
from loadtest.targets import NEAREST, Target, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.record import Record, Result, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace

_LEAD_S = 0.5
_LOOK_EVERY_S = 0.2
_TICK_S = 0.01


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
            self._server = stack.enter_context(ServerProcess(config, settings, place.name, has_metrics=True))
            self._standby: ServerProcess | None = None
            if has_standby:
                standby = ServerProcess(config, settings, f"{place.name}-standby", has_metrics=True)
                self._standby = stack.enter_context(standby)
            self._relay = stack.enter_context(Relay(self._server.ready["address"], place.round_trip_ms))
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


def running_sites(
    places: Sequence[Place], config: Path, overrides: Sequence[str], how: Loss
) -> AbstractContextManager[list[RegionSite]]:
    """Run a server at each place, of which the first is to be lost.

    Raises:
        StartError: one did not start.

    """
    standbys = [how is Loss.KILL and place is places[0] for place in places]
    return started_together(
        [
            partial(RegionSite, place, config, overrides, has_standby=has_standby)
            for place, has_standby in zip(places, standbys, strict=True)
        ]
    )


def target_of(sites: Sequence[RegionSite], return_spread_s: float) -> str:
    """Return the target of editors that use the nearest of the sites."""
    return f"regions={NEAREST}://{','.join(site.address for site in sites)}?return_spread_s={return_spread_s:g}"


@dataclass(frozen=True, slots=True)
class LossPlan:
    """What is done and when; times in seconds from the run's start."""

    how: Loss
    lost_at_s: float
    back_at_s: float


@dataclass(slots=True)
class Course:
    """What happened. Region 0 is the nearest, which is lost; times in seconds from the run's start."""

    regions: tuple[str, ...]
    num_editors: int
    duration_s: float = 0.0
    lost_at_s: float = 0.0
    """When the loss began, by the generator's clock."""
    back_at_s: float = 0.0
    """From when on the region could be reached again."""
    results: list[Result] = field(default_factory=list)
    """All requests, in the order of their intended times."""
    presence: list[tuple[float, Mapping[int, int]]] = field(default_factory=list)
    """How many editors were at each region, at some times."""
    loop_lags: list[tuple[float, float]] = field(default_factory=list)
    """How late the generator's event loop was, at some times: what it adds to a latency in seconds."""
    reconnects_s: list[float] = field(default_factory=list)
    """For each stream that was lost, how long it was away."""


async def follow(
    spec: TargetSpec,
    scenario: Scenario,
    trace: Trace,
    plan: LossPlan,
    site: RegionSite,
    stats: RunStats,
    on_time: Callable[[float], None],
) -> Course:
    """Drive the editors of a trace and lose a region on the way; record into `stats`, too.

    `on_time` is called several times a second with the time in the run.

    Raises:
        TargetError: the editors could not connect.
        StartError: the relay has died.

    """
    course = Course(tuple(region.name for region in scenario.regions), len(trace.sessions))
    records: list[Record] = []
    recorder = make_recorder(stats, trace, scenario, spec)

    def due(record: Record) -> None:
        records.append(record)
        recorder.due(record)

    async with GrpcTarget(spec, client_settings_of(scenario)) as target, target.editors(trace) as editors:
        if scenario.editor.lead_in:
            await lead_in(editors, trace)
        settle_memory()
        clock = RunClock(_LEAD_S)
        driver = Driver(trace, editors, clock, Callbacks(due, recorder.ended), scenario.editor.cache_entries)
        watches = (
            count_present(target, recorder, clock, scenario.slice_s),
            _watch_editors(target, clock, course, on_time),
            _watch_loop(clock, course),
        )
        async with _meanwhile(*watches), _meanwhile(_lose(site, plan, clock, course)) as (accident,):
            course.duration_s = stats.duration_s = await driver.drive()
            await accident
        course.reconnects_s = list(target.reconnects_s)
        recorder.connections(course.reconnects_s, driver.num_lost)
    course.results = [record.result() for record in records]
    return course


@asynccontextmanager
async def _meanwhile(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run coroutines in tasks, which are cancelled at the end."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _lose(site: RegionSite, plan: LossPlan, clock: RunClock, course: Course) -> None:
    await clock.sleep_until(plan.lost_at_s)
    course.lost_at_s = clock.now_s()
    await site.lose(plan.how)
    await clock.sleep_until(plan.back_at_s)
    await site.bring_back(plan.how)
    course.back_at_s = clock.now_s()


async def _watch_editors(target: Target, clock: RunClock, course: Course, on_time: Callable[[float], None]) -> None:
    at_s = 0.0
    while True:
        await clock.sleep_until(at_s)
        course.presence.append((clock.now_s(), dict(target.present())))
        on_time(clock.now_s())
        at_s += _LOOK_EVERY_S


async def _watch_loop(clock: RunClock, course: Course) -> None:
    while True:
        due_s = clock.now_s() + _TICK_S
        await asyncio.sleep(_TICK_S)
        course.loop_lags.append((due_s, clock.now_s() - due_s))
