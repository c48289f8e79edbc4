"""The front end under editors, on the scripted engine, with a bare gRPC server beside it: CPU time and memory."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import click
import psutil
from rich.console import Console

from loadtest.commands.outcome import Live
from loadtest.driving.run import RunProgress, run_scenario
from loadtest.processes.child import Child
from loadtest.stats import RunStats
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario, ScenarioError

LARGE_MODEL = (
    "engine.kind=scripted",
    "engine.scripted_times=large_model_prefilled_apart",
    "engine.scripted_acceptance=0.82",
    "engine.num_speculative_tokens=5",
    "engine.max_num_seqs=128",
    "scheduling.max_slots=128",
)
"""Overrides for a scripted engine with a large model's service times: 45 ms for a prompt, computed apart from the
steps, 8 ms for a step, five draft tokens of which 82% are accepted in turn, 128 slots."""

_START_S = 60.0
_MIB = 1024 * 1024


def editors(sessions: int, requests_per_s: float, seconds: float, seed: int) -> Scenario:
    """Return the packaged scenario of ten thousand editors with other sizes: the time away follows from the rate.

    Raises ScenarioError if so few editors can't send as many requests.
    """
    scenario = Scenario.load("editors-10k")
    while_typing = scenario.session_requests_per_s / (1 - scenario.typing.away_share)
    away_share = 1 - requests_per_s / sessions / while_typing
    if away_share < 0:
        msg = f"requests-per-s: {sessions} editors ask at most {sessions * while_typing:.0f}, got {requests_per_s:g}"
        raise ScenarioError(msg)
    tree = scenario.model_dump() | {"sessions": sessions, "duration_s": seconds, "seed": seed}
    tree["typing"]["away_share"] = away_share
    return Scenario.of(tree)


class ProcessReading(NamedTuple):
    """CPU time and memory of a process at a time of the run."""

    elapsed_s: float
    cpu_s: float
    rss_bytes: int
    num_intended: int


@dataclass(slots=True)
class ProcessWatch:
    """Readings of a process, taken at each progress report of the run."""

    process: psutil.Process
    readings: list[ProcessReading] = field(default_factory=list)
    """Readings while requests come."""

    def look(self, progress: RunProgress) -> None:
        """Take a reading."""
        if progress.is_running and progress.num_intended:
            rss = self.process.memory_info().rss
            self.readings.append(ProcessReading(progress.elapsed_s, cpu_s(self.process), rss, progress.num_intended))

    @property
    def cpu_ms_a_request(self) -> float:
        """CPU milliseconds per request between the first reading and the last."""
        first, last = self.readings[0], self.readings[-1]
        return (last.cpu_s - first.cpu_s) * 1000 / max(1, last.num_intended - first.num_intended)

    @property
    def growth_mib_per_min(self) -> float:
        """Growth of memory over the second half of the run, after every session has typed."""
        half = self.readings[len(self.readings) // 2]
        last = self.readings[-1]
        return (last.rss_bytes - half.rss_bytes) / _MIB / max(1e-9, last.elapsed_s - half.elapsed_s) * 60


def drive(
    scenario: Scenario, target: str, pid: int, console: Console, workers: int = 1
) -> tuple[RunStats, ProcessWatch]:
    """Run a scenario against a target, and watch the target's process."""
    spec, watch = parse_target(target), ProcessWatch(psutil.Process(pid))
    with Live(console) as live:

        def show(progress: RunProgress) -> None:
            watch.look(progress)
            live.show(progress)

        result = run_scenario(scenario, [spec], workers=workers, progress=show)
    if result.interrupted:
        raise click.Abort
    return result.stats_by_target[spec.name], watch


@contextmanager
def bare_server(deltas: float) -> Iterator[tuple[str, int]]:
    """Run the bare gRPC server, which sends `deltas` deltas before each end; yield its address and process id.

    Raises StartError if it did not start.
    """
    command = (sys.executable, "-m", "loadtest.bench.peers.bare_grpc", "--deltas", str(deltas))
    with Child("bare", command, is_piped=True) as child:
        yield child.read_json(_START_S)["address"], child.pid


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process, user and system."""
    times = process.cpu_times()
    return float(times.user + times.system)
