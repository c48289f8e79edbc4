"""A worker process: drives its share of the sessions on commands from a pipe. Knows nothing of the other workers.

For each run the worker receives PREPARE (it makes its trace and connects), answers READY, receives GO with the start
time, sends reports, and answers DONE with its statistics. STOP may come at any time and takes effect at once. A command
that can't be carried out is answered with FAILED.
"""

import asyncio
import gc
import signal
import traceback
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from enum import Enum, auto
from multiprocessing.connection import Connection
from typing import Any

from loadtest import LoadTestError
from loadtest.driving.driver import DRAIN_S, Callbacks, Driver, lead_in
from loadtest.driving.recorder import Recorder
from loadtest.stats import RunStats
from loadtest.targets import NEAREST, ClientSettings, Editor, Target, TargetSpec
from loadtest.targets.grpc import GrpcTarget
from loadtest.targets.http import HttpTarget
from loadtest.targets.record import RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import make_trace
from loadtest.traffic.typed import Trace

_REPORTS_EVERY_S = 0.5
_COLLECT_AFTER = 50_000
"""Objects until a garbage collection; answered requests leave no cycles."""


class Kind(Enum):
    """The kinds of messages, each with a payload."""

    PREPARE = auto()
    """Command: prepare a run of a scenario against a target."""
    GO = auto()
    """Command: run; the Unix time of the start, the same for all workers."""
    STOP = auto()
    """Command: stop the run."""
    READY = auto()
    """Answer to PREPARE: the digest of the worker's trace."""
    REPORT = auto()
    """Periodic report: the numbers of sessions, connected ones, intended and seen requests, and errors so far."""
    DONE = auto()
    """Answer to GO: the statistics as JSON; None if the run was stopped before it began."""
    FAILED = auto()
    """Answer to any command: why it can't be carried out."""


Message = tuple[Kind, Any]


def work(pipe: Connection, worker: int, num_workers: int) -> None:
    """Serve commands until the other end of the pipe is closed."""
    # The terminal's Ctrl-C reaches all processes. The parent process handles it and sends STOP.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    asyncio.run(_Worker(pipe, worker, num_workers).serve())


def client_settings_of(scenario: Scenario) -> ClientSettings:
    """Return the client settings of a scenario's editors."""
    editor = scenario.editor
    return ClientSettings(
        max_tokens=editor.max_tokens,
        mode=editor.mode,
        cancels_at_key=editor.cancels_at_key,
        deadline_s=editor.deadline_ms / 1000,
        traced_share=editor.traced_share,
        patience_s=scenario.criteria.within_ms / 1000,
    )


def make_recorder(stats: RunStats, trace: Trace, scenario: Scenario, spec: TargetSpec) -> Recorder:
    """Return a recorder. Hosts that editors choose have the regions' names if there are as many, else their own."""
    is_chosen = spec.kind == NEAREST
    names = [region.name for region in scenario.regions]
    if is_chosen and len(names) != len(spec.hosts):
        names = list(spec.hosts)
    return Recorder(stats, trace.sessions, dict(enumerate(names)), scenario.criteria, is_chosen=is_chosen)


def make_target(spec: TargetSpec, settings: ClientSettings) -> GrpcTarget | HttpTarget:
    """Return a target that is not open yet. Raises TargetError if one of its options is not valid."""
    return GrpcTarget(spec, settings) if spec.kind.startswith("grpc") else HttpTarget(spec, settings)


async def count_present(target: Target, recorder: Recorder, clock: RunClock, slice_s: float) -> None:
    """Record in the middle of each slice how many editors are at each host, until cancelled."""
    middle_s = slice_s / 2
    while target.present():
        await clock.sleep_until(middle_s)
        recorder.present(middle_s, target.present())
        middle_s += slice_s


def settle_memory() -> None:
    """Keep the garbage collector away from the prepared objects, and make it rare: its pauses delay requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 100)


@asynccontextmanager
async def meanwhile(other: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do something else until the block ends."""
    task = asyncio.create_task(other)
    try:
        yield
    finally:
        task.cancel()


class _Worker:
    """Carries out commands; a task runs the current one, so that STOP can interrupt it."""

    def __init__(self, pipe: Connection, worker: int, num_workers: int) -> None:
        self._pipe = pipe
        self._worker = worker
        self._num_workers = num_workers
        self._has_quit = asyncio.Event()
        self._start_at: asyncio.Future[float] = asyncio.Future()
        self._run_task: asyncio.Task[None] | None = None
        self._driver: Driver | None = None
        self._trace: tuple[str, Trace] = ("", Trace("", 0.0, ()))
        """The last one with its scenario's digest, for the next target."""

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._on_message)
        await self._has_quit.wait()
        loop.remove_reader(self._pipe.fileno())
        if self._run_task is not None:
            self._run_task.cancel()
            await asyncio.gather(self._run_task, return_exceptions=True)

    def _on_message(self) -> None:
        try:
            kind, payload = self._pipe.recv()
        except (EOFError, OSError):  # the pool is closed
            kind, payload = Kind.STOP, None
            self._has_quit.set()
        if kind is Kind.PREPARE:
            self._start_at = asyncio.get_running_loop().create_future()
            self._run_task = asyncio.create_task(self._run(*payload))
            self._run_task.add_done_callback(self._on_run_ended)
        elif kind is Kind.GO:
            self._start_at.set_result(payload)
        elif self._driver is not None:
            self._driver.stop_nowait()
        elif self._run_task is not None:
            self._run_task.cancel()

    def _on_run_ended(self, task: "asyncio.Task[None]") -> None:
        """Report a run that was cancelled or failed."""
        if task.cancelled():
            self._send(Kind.DONE, None)
        elif error := task.exception():
            is_expected = isinstance(error, (LoadTestError, OSError))
            self._send(Kind.FAILED, str(error) if is_expected else "".join(traceback.format_exception(error)))

    def _send(self, kind: Kind, payload: object) -> None:
        try:
            self._pipe.send((kind, payload))
        except OSError:
            self._has_quit.set()

    async def _run(self, scenario: Scenario, spec: TargetSpec) -> None:
        if self._trace[0] != scenario.digest():
            made = await asyncio.to_thread(make_trace, scenario, self._worker, self._num_workers)
            self._trace = (scenario.digest(), made)
        trace = self._trace[1]
        stats = RunStats(spec.name, scenario.duration_s, scenario.run_slice_s, num_workers=self._num_workers)
        stats.workers = frozenset({self._worker})
        recorder = make_recorder(stats, trace, scenario, spec)
        async with (
            make_target(spec, client_settings_of(scenario)) as target,
            meanwhile(self._report(trace, target, stats)),
            target.editors(trace) as editors,
        ):
            if scenario.editor.lead_in:
                await lead_in(editors, trace)
            self._send(Kind.READY, trace.digest())
            settle_memory()
            await self._drive(scenario, trace, target, editors, recorder, stats)
        self._send(Kind.DONE, stats.as_json())

    async def _drive(
        self,
        scenario: Scenario,
        trace: Trace,
        target: Target,
        editors: Sequence[Editor],
        recorder: Recorder,
        stats: RunStats,
    ) -> None:
        clock = RunClock.starting_at(await self._start_at)
        tokens = await self._generated_tokens(target)
        callbacks = Callbacks(due=recorder.due, ended=recorder.ended)
        self._driver = Driver(trace, editors, clock, callbacks, scenario.editor.cache_entries)
        async with meanwhile(count_present(target, recorder, clock, stats.slice_s)):
            stats.duration_s = await self._driver.drive(DRAIN_S)
            recorder.connections(target.reconnects_s, self._driver.num_lost)
        self._driver = None
        recorder.generated(await self._generated_tokens(target) - tokens)

    async def _generated_tokens(self, target: Target) -> float:
        """Return the engine's counter. Worker 0 reads it for all workers: they share the engine."""
        return await target.generated_tokens() if self._worker == 0 else float("nan")

    async def _report(self, trace: Trace, target: Target, stats: RunStats) -> None:
        while True:
            counts = (stats.total.counters[name] for name in ("intended", "seen", "errors"))
            self._send(Kind.REPORT, (len(trace.sessions), target.num_connected, *counts))
            await asyncio.sleep(_REPORTS_EVERY_S)
