"""Drives editors while the nearest of three regions is lost and comes back, and notes what happens and when.

Each region has a server behind a relay that puts a distance before it.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from loadtest.bench.runner.front_end import LARGE_MODEL
from loadtest.bench.runner.relay import Relay
from loadtest.bench.runner.server import ServerProcess
from loadtest.driving.driver import Callbacks, Driver, lead_in
from loadtest.driving.worker import client_settings_of, count_present, make_recorder, settle_memory
from loadtest.stats import RunStats
from loadtest.targets import Target, TargetSpec
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


class RegionSite:
    """The server of one region, behind its distance. `address` stays the same after a loss."""

    def __init__(
        self, name: str, round_trip_ms: float, config: Path, overrides: Sequence[str], loss: Loss | None
    ) -> None:
        """Start it, with a standby for a server that is to be killed: a start takes CPU time from all others.

        Raises:
            StartError: it did not start.

        """
        self._loss = loss
        settings = (*LARGE_MODEL, f"server.region={name}", *overrides)
        names = (name, f"{name}-standby") if loss is Loss.KILL else (name,)
        with ExitStack() as stack:
            self._servers = [
                stack.enter_context(ServerProcess(config, settings, each, has_metrics=True)) for each in names
            ]
            self._relay = stack.enter_context(Relay(self._servers[0].ready["address"], round_trip_ms))
            self.address = self._relay.address
            self._stack = stack.pop_all()

    async def lose(self) -> None:
        """Lose the server."""
        if self._loss is Loss.KILL:
            os.kill(self._servers[0].pid, signal.SIGKILL)
        else:
            await asyncio.to_thread(self._servers[0].process.pause)

    async def bring_back(self) -> None:
        """Let clients reach the standby of a killed server, at the same address, or the server that was suspended."""
        if self._loss is Loss.KILL:
            await asyncio.to_thread(self._relay.move_to, self._servers[1].ready["address"])
        else:
            await asyncio.to_thread(self._servers[0].process.resume)

    def stop(self) -> None:
        """Stop the servers and the relay."""
        self._stack.close()


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
    site: RegionSite,
    stats: RunStats,
    on_time: Callable[[float], None],
) -> Course:
    """Drive the editors of a trace and lose a site on the way, when the scenario's event says; record into `stats`.

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
        async with _meanwhile(
            _lose(site, scenario, clock, course),
            count_present(target, recorder, clock, scenario.slice_s),
            _watch_editors(target, clock, course, on_time),
            _watch_loop(clock, course),
        ) as loss:
            course.duration_s = stats.duration_s = await driver.drive()
            await loss
        course.reconnects_s = list(target.reconnects_s)
        recorder.connections(course.reconnects_s, driver.num_lost)
    course.results = [record.result() for record in records]
    return course


@asynccontextmanager
async def _meanwhile(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run coroutines in tasks, which are cancelled at the end; yield the task of the first."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _lose(site: RegionSite, scenario: Scenario, clock: RunClock, course: Course) -> None:
    (event,) = scenario.events
    await clock.sleep_until(event.at_s)
    course.lost_at_s = clock.now_s()
    await site.lose()
    await clock.sleep_until(event.at_s + event.for_s)
    await site.bring_back()
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
