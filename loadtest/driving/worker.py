"""A worker process: drives its share of the sessions on commands from a pipe. Knows nothing of the other workers.

For each run the worker receives Prepare (it makes its trace and connects), answers Ready, receives Go with the start
time, sends status reports, and answers Done with its statistics. Stop may come at any time and takes effect at once.
"""

import asyncio
import gc
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Prepare:
    """Command: prepare a run."""

    scenario: Scenario
    spec: TargetSpec


@dataclass(frozen=True, slots=True)
class Go:
    """Command: run."""

    start_at: float
    """Unix time, the same for all workers."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Command: stop the run."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Answer to Prepare: the worker is ready to start."""

    digest: str
    """Digest of the worker's trace."""


@dataclass(frozen=True, slots=True)
class StatusReport:
    """Periodic report of a worker's progress."""

    num_sessions: int
    num_connected: int
    counts: dict[str, int]
    """Counters so far."""


@dataclass(frozen=True, slots=True)
class Done:
    """Answer to Go: the statistics as JSON; None if the run was stopped before it began."""

    stats: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Answer to any command that the worker can't carry out; the message says why."""

    message: str


def work(pipe: Connection, worker: int, num_workers: int) -> None:
    """Serve commands until the other end of the pipe is closed."""
    # The terminal's Ctrl-C reaches all processes. The parent process handles it and sends Stop.
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
    if not target.present():
        return
    middle_s = slice_s / 2
    while True:
        await clock.sleep_until(middle_s)
        recorder.present(middle_s, target.present())
        middle_s += slice_s


def settle_memory() -> None:
    """Keep the garbage collector away from the prepared objects, and make it rare: its pauses delay requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 100)


class _Worker:
    """Carries out commands; a task runs the current one, so that Stop can interrupt it."""

    def __init__(self, pipe: Connection, worker: int, num_workers: int) -> None:
        self._pipe = pipe
        self._worker = worker
        self._num_workers = num_workers
        self._has_quit = asyncio.Event()
        self._start_at: asyncio.Future[float] = asyncio.Future()
        self._run_task: asyncio.Task[None] | None = None
        self._driver: Driver | None = None
        self._trace: tuple[str, Trace] | None = None

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pipe.fileno(), self._on_message)
        try:
            await self._has_quit.wait()
        finally:
            loop.remove_reader(self._pipe.fileno())
            if self._run_task is not None:
                self._run_task.cancel()
                await asyncio.gather(self._run_task, return_exceptions=True)

    def _on_message(self) -> None:
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):  # the pool is closed
            self._stop()
            self._has_quit.set()
            return
        match message:
            case Prepare(scenario, spec):
                self._start_at = asyncio.get_running_loop().create_future()
                self._run_task = asyncio.create_task(self._run(scenario, spec))
                self._run_task.add_done_callback(self._on_run_ended)
            case Go(start_at):
                self._start_at.set_result(start_at)
            case Stop():
                self._stop()

    def _stop(self) -> None:
        if self._driver is not None:
            self._driver.stop_nowait()
        elif self._run_task is not None:
            self._run_task.cancel()

    def _on_run_ended(self, task: "asyncio.Task[None]") -> None:
        """Report a run that was cancelled or failed."""
        if task.cancelled():
            self._send(Done(None))
            return
        error = task.exception()
        if isinstance(error, (LoadTestError, OSError)):
            self._send(Failed(str(error)))
        elif error is not None:
            self._send(Failed("".join(traceback.format_exception(error))))

    def _send(self, message: WorkerReady | StatusReport | Done | Failed) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            self._has_quit.set()

    async def _run(self, scenario: Scenario, spec: TargetSpec) -> None:
        trace = await self._make_trace(scenario)
        stats = RunStats(spec.name, scenario.duration_s, scenario.slice_s, num_workers=self._num_workers)
        stats.workers = frozenset({self._worker})
        recorder = make_recorder(stats, trace, scenario, spec)
        async with make_target(spec, client_settings_of(scenario)) as target:
            reporting = asyncio.create_task(self._report_status(trace, target, stats))
            try:
                async with target.editors(trace) as editors:
                    if scenario.editor.lead_in:
                        await lead_in(editors, trace)
                    self._send(WorkerReady(trace.digest()))
                    settle_memory()
                    await self._drive(scenario, trace, target, editors, recorder, stats)
            finally:
                reporting.cancel()
        self._send(Done(stats.as_json()))

    async def _drive(
        self,
        scenario: Scenario,
        trace: Trace,
        target: Target,
        editors: Sequence[Editor],
        recorder: Recorder,
        stats: RunStats,
    ) -> None:
        start_at = await self._start_at
        # Worker 0 reads the counter for all workers: they share the engine.
        tokens = await self._count(target)
        callbacks = Callbacks(due=recorder.due, ended=recorder.ended)
        clock = RunClock.starting_at(start_at)
        self._driver = Driver(trace, editors, clock, callbacks, scenario.editor.cache_entries)
        counting = asyncio.create_task(count_present(target, recorder, clock, scenario.slice_s))
        try:
            stats.duration_s = await self._driver.drive(DRAIN_S)
            recorder.connections(target.reconnects_s, self._driver.num_lost)
        finally:
            counting.cancel()
            self._driver = None
        recorder.generated(await self._count(target) - tokens)

    async def _count(self, target: Target) -> float:
        return await target.generated_tokens() if self._worker == 0 else float("nan")

    async def _make_trace(self, scenario: Scenario) -> Trace:
        """Return the worker's share of the trace. The last one is kept for the next target."""
        digest = scenario.digest()
        if self._trace is None or self._trace[0] != digest:
            made = await asyncio.to_thread(make_trace, scenario, self._worker, self._num_workers)
            self._trace = (digest, made)
        return self._trace[1]

    async def _report_status(self, trace: Trace, target: Target, stats: RunStats) -> None:
        while True:
            counters = stats.total.counters
            counts = {name: counters[name] for name in ("intended", "seen", "errors")}
            self._send(StatusReport(len(trace.sessions), target.num_connected, counts))
            await asyncio.sleep(_REPORTS_EVERY_S)
