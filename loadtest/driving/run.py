"""Runs a scenario against one or more targets with several worker processes, in turn or in interleaved blocks."""

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from loadtest import LoadTestError
from loadtest.driving.driver import DRAIN_S
from loadtest.driving.worker import Kind
from loadtest.driving.worker_pool import Interruption, RunError, WorkerPool, check
from loadtest.stats import RunStats, merge
from loadtest.targets import TargetSpec
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import join_digests

_LEAD_S = 0.5
"""Time from the last worker's READY to the start."""
_PREPARE_S = 900.0
_AFTER_S = 60.0
"""Time that workers may take to end after a run's last answers."""


class BlocksError(LoadTestError):
    """A scenario can't be divided into blocks; the message says why."""


@dataclass(frozen=True, slots=True)
class TargetTurn:
    """One target's turn in a run."""

    number: int
    num_turns: int
    scenario: Scenario
    spec: TargetSpec


def plan(scenario: Scenario, specs: Sequence[TargetSpec], num_blocks: int) -> Iterator[TargetTurn]:
    """Yield the turns of a run. With one block each target has a whole run, one after another.

    With more, the run is divided into blocks, each with its own traffic. In each block the targets take turns, in an
    order that rotates, so that a drift of the machine affects all of them.

    Raises BlocksError if the scenario has something that only a whole run shows.
    """
    if num_blocks > 1:
        _check(scenario, num_blocks)
    for block in range(num_blocks):
        stretch, first = scenario, block % len(specs)
        if num_blocks > 1:
            seed = hashlib.sha256(f"{scenario.seed}/{block}".encode()).hexdigest()[:12]
            slices = round(scenario.duration_s / num_blocks / scenario.slice_s)
            stretch = scenario.scaled(duration_s=max(1, slices) * scenario.slice_s, seed=seed)
        for place, spec in enumerate((*specs[first:], *specs[:first])):
            yield TargetTurn(block * len(specs) + place, num_blocks * len(specs), stretch, spec)


def join(whole: RunStats | None, block: RunStats) -> RunStats:
    """Append the statistics of a target's next block to those of its earlier blocks."""
    if whole is None:
        return block
    offset = math.ceil(whole.duration_s / whole.slice_s - 1e-9)
    sessions = whole.total.counters["sessions"]
    whole.total.add(block.total)
    whole.total.counters["sessions"] = max(sessions, block.total.counters["sessions"])  # the same ones
    for place, each in enumerate(block.slices):
        whole.slice_at((offset + place + 0.5) * whole.slice_s).add(each)
    whole.duration_s += block.duration_s
    whole.workers &= block.workers
    return whole


def _check(scenario: Scenario, num_blocks: int) -> None:
    faults = (
        (scenario.events, "has events"),
        (scenario.shape.kind != "steady", f"has the shape {scenario.shape.kind}"),
        (scenario.duration_s / num_blocks < scenario.slice_s, f"is too short for {num_blocks} blocks"),
    )
    for is_fault, why in faults:
        if is_fault:
            msg = f"scenario {scenario.name} {why}, so it can't be cut into blocks: let targets run --in-turn"
            raise BlocksError(msg)


@dataclass(frozen=True, slots=True)
class Machine:
    """The share of this machine in a run of several machines with the same number of workers each."""

    index: int = 0
    count: int = 1
    start_at: float | None = None
    """Unix time, the same for all machines. None: the run starts when it is ready."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run."""

    turn: TargetTurn
    elapsed_s: float
    """Time since the first request could be sent; 0 while the workers prepare."""
    num_sessions: int
    num_connected: int
    num_intended: int
    num_seen: int
    num_errors: int

    @property
    def is_running(self) -> bool:
        """Whether requests are sent; false while the workers prepare."""
        return self.elapsed_s > 0


@dataclass(slots=True)
class RunResult:
    """The result of a run."""

    stats_by_target: dict[str, RunStats] = field(default_factory=dict)
    """Statistics by target; a target without a turn has none."""
    interrupted: bool = False
    num_workers: int = 1
    """Workers on all machines."""
    started_at: str = ""
    schedule_digest: str = ""
    """Digest of this machine's share of the trace."""
    failure: str = ""
    """Why the run ended early; the statistics until then are kept."""


def default_workers() -> int:
    """Return the number of workers that leaves one core to the target."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def run_scenario(
    scenario: Scenario,
    specs: Sequence[TargetSpec],
    *,
    workers: int,
    blocks: int = 1,
    progress: Callable[[RunProgress], None] | None = None,
    machine: Machine | None = None,
    interruption: Interruption | None = None,
) -> RunResult:
    """Run a scenario against targets, in turn or in interleaved blocks, and return the statistics.

    In the main thread a first Ctrl-C ends the run in order and keeps the statistics; elsewhere `interruption` does.

    Raises CheckError if a target or the machine is not ready; nothing was sent; BlocksError if the scenario can't be
    divided into blocks; RunError if a target can't be connected to, or all workers died.
    """
    machine = machine or Machine()
    check(scenario, specs, workers)
    turns = list(plan(scenario, specs, blocks))
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    result = RunResult(num_workers=workers * machine.count, started_at=started_at)
    digests: dict[str, list[str]] = {}
    with interruption or Interruption() as asked:
        with WorkerPool(machine.index * workers, workers, result.num_workers) as pool:
            for turn in turns:
                runner = _TurnRunner(pool, turn, machine.start_at, asked, progress)
                try:
                    stats = runner.take()
                except RunError as error:
                    if not result.stats_by_target:
                        raise
                    result.failure = f"{turn.spec.name}: {error}"
                    break
                digests[turn.scenario.digest()] = runner.digests  # the same for every target
                if stats is not None:
                    result.stats_by_target[turn.spec.name] = join(result.stats_by_target.get(turn.spec.name), stats)
                if asked.is_asked:
                    break
        result.interrupted = asked.is_asked
    result.schedule_digest = join_digests(each for found in digests.values() for each in found)
    return result


@dataclass(slots=True)
class _TurnRunner:
    """Carries out one target's turn."""

    pool: WorkerPool
    turn: TargetTurn
    start_at: float | None
    asked: Interruption
    progress: Callable[[RunProgress], None] | None
    digests: list[str] = field(default_factory=list)
    _is_running: bool = False
    _is_stopping: bool = False

    def take(self) -> RunStats | None:
        """Return the turn's statistics; None if it was interrupted before it began."""
        self.pool.send(Kind.PREPARE, (self.turn.scenario, self.turn.spec))
        answers = self.pool.answers(_PREPARE_S, self._pulse)
        self.digests = [digest for kind, digest in answers if kind is Kind.READY]
        if self._is_stopping:
            return None
        self.start_at = self.start_at or time.time() + _LEAD_S
        if (late_s := time.time() - self.start_at) > 0:
            msg = f"ready {late_s:.1f} s after the time at which all machines start; begin with one further ahead"
            raise RunError(msg)
        self._is_running = True
        self.pool.send(Kind.GO, self.start_at)
        wait_s = self.start_at - time.time() + self.turn.scenario.duration_s + DRAIN_S + _AFTER_S
        found = [RunStats.from_json(stats) for _kind, stats in self.pool.answers(wait_s, self._pulse) if stats]
        return merge(found) if found else None

    def _pulse(self) -> None:
        if self.asked.is_asked and not self._is_stopping:
            self._is_stopping = True
            self.pool.send(Kind.STOP)
        if self.progress is not None:
            elapsed_s = time.time() - self.start_at if self.start_at and self._is_running else 0.0
            elapsed_s = min(max(0.0, elapsed_s), self.turn.scenario.duration_s)
            self.progress(RunProgress(self.turn, elapsed_s, *map(sum, zip(*self.pool.reports(), strict=True))))
