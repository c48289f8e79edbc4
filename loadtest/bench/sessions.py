"""Measures the front end's cost with ten thousand editors, compared with a gRPC server without logic.

The real front end is in front of the scripted engine at a large model's service times. The editors' streams share
connections, as behind a proxy. The front end's part of a TTFT is the client's time from sending to the first text, less
the server's reported time in the queue and until the engine's first token. CPU is that of the server's process while
requests come, memory its growth from ready to the end. The bare server then gets the same traffic, and answers with the
same number of messages per request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
import psutil
from rich.console import Console

from loadtest.bench.bare import bare_server
from loadtest.bench.runner.benchmark import COUNT, ServerOptions, benchmark, option
from loadtest.bench.runner.contest import editors
from loadtest.bench.runner.server import ServerProcess, cpu_s
from loadtest.commands.outcome import Live
from loadtest.driving.run import RunProgress, run_scenario
from loadtest.report.figures import figures, reasons_invalid
from loadtest.stats import RunStats
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

_LARGE_MODEL = (
    "engine.kind=scripted",
    "engine.scripted_times=large_model_prefilled_apart",
    "engine.scripted_acceptance=0.82",
    "engine.num_speculative_tokens=5",
    "engine.max_num_seqs=128",
    "scheduling.max_slots=128",
)
_SHARED = "connections=100"
"""Connections that carry all streams, as a proxy's do."""
_BARE_SHARE, _MOST_BARE_S = 0.25, 15.0
_MIB = 1024 * 1024
_FIGURES = {
    "requests_per_s": "offered_per_s",
    "front_end_ttft_p50_ms": "front_end_ms_p50",
    "front_end_ttft_p99_ms": "front_end_ms_p99",
    "generator_lag_p99_ms": "lag_ms_p99",
    "ttft_p50_ms": "ttft_ms_p50",
    "ttft_p99_ms": "ttft_ms_p99",
    "seen_per_s": "seen_per_s",
    "shed_share": "shed_share",
    "sessions_lost": "sessions_lost",
    "reconnects": "reconnects",
    "reconnect_p99_ms": "reconnect_ms_p99",
    "reconnect_p999_ms": "reconnect_ms_p999",
}
"""The load tester's names of the figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    sessions: tuple[int, ...] = option((10_000,), "May be repeated.", COUNT, quick=(40,))
    rates: tuple[float, ...] = option(
        (1500.0, 750.0),
        "Asked by all editors together: how long they are away between spells of typing follows. May be repeated.",
        click.FloatRange(1),
        "--requests-per-s",
        quick=(40.0,),
    )
    seconds: float = option(60.0, "Of traffic.", click.FloatRange(5), quick=5.0)
    storm: bool = option(False, "All editors lose their streams in the middle, and come back at once.")
    seed: int = option(0, "Who types what and when.", int)


@benchmark(_Options)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Measure the front end. The last line is a JSON object: the first run, and under "runs" all of them.

    \b
    Example:
        python -m loadtest.bench.sessions --seconds 300 --requests-per-s 750
        python -m loadtest.bench.sessions --sessions 12000 --storm
    """
    runs = [
        _measure(editors(sessions, rate, options.seconds, options.seed), options, console)
        for sessions in options.sessions
        for rate in options.rates
    ]
    return runs[0] | {"scenario": "editors-10k", "seconds": options.seconds, "runs": runs}


class _Reading(NamedTuple):
    """A reading of a process, taken at a progress report while requests come."""

    elapsed_s: float
    cpu_s: float
    rss_bytes: int
    num_intended: int


def _cpu_ms_a_request(readings: Sequence[_Reading]) -> float:
    first, last = readings[0], readings[-1]
    return (last.cpu_s - first.cpu_s) * 1000 / max(1, last.num_intended - first.num_intended)


def _growth_mib_per_min(readings: Sequence[_Reading]) -> float:
    """Return the growth of memory over the second half of the run, after every session has typed."""
    half, last = readings[len(readings) // 2], readings[-1]
    return (last.rss_bytes - half.rss_bytes) / _MIB / max(1e-9, last.elapsed_s - half.elapsed_s) * 60


def _drive(scenario: Scenario, target: str, pid: int, console: Console) -> tuple[RunStats, list[_Reading]]:
    """Run a scenario against a target, and watch the target's process."""
    spec, process, readings = parse_target(target), psutil.Process(pid), list[_Reading]()
    with Live(console) as live:

        def show(progress: RunProgress) -> None:
            if progress.is_running and progress.num_intended:
                rss = process.memory_info().rss
                readings.append(_Reading(progress.elapsed_s, cpu_s(process), rss, progress.num_intended))
            live.show(progress)

        result = run_scenario(scenario, [spec], workers=1, progress=show)
    if result.interrupted:
        raise click.Abort
    return result.stats_by_target[spec.name], readings


def _measure(calm: Scenario, options: _Options, console: Console) -> dict[str, Any]:
    scenario = calm
    if options.storm:
        storm = {"kind": "reconnect", "at_s": options.seconds / 2}
        scenario = Scenario.of(calm.model_dump() | {"events": (storm,)})
    with ServerProcess(options.config, (*_LARGE_MODEL, *options.overrides), has_metrics=True) as server:
        idle_rss_bytes = psutil.Process(server.pid).memory_info().rss
        target = f"server=grpc://{server.ready['address']}?metrics={server.ready['metrics_address']}&{_SHARED}"
        stats, readings = _drive(scenario, target, server.pid, console)
        counters = stats.total.counters
        server.process.pause()  # the bare server has the machine to itself
        quick = calm.scaled(duration_s=min(_MOST_BARE_S, options.seconds * _BARE_SHARE))
        with bare_server(max(0, counters["messages"] / max(1, counters["sent"]) - 1)) as (address, pid):
            _, bare = _drive(quick, f"bare=grpc://{address}?{_SHARED}", pid, console)
    for reason in reasons_invalid(stats):
        console.print(f"{scenario.sessions:,} sessions: not valid: {reason}", style="red")
    found = figures(stats, scenario.criteria)
    return {name: found[own] for name, own in _FIGURES.items()} | {
        "sessions": scenario.sessions,
        "errors": counters["errors"],
        "server_kib_per_session": (readings[-1].rss_bytes - idle_rss_bytes) / 1024 / scenario.sessions,
        "server_growth_mib_per_min": _growth_mib_per_min(readings),
        "server_cpu_s_per_1000_requests": _cpu_ms_a_request(readings),
        "bare_cpu_s_per_1000_requests": _cpu_ms_a_request(bare),
        "messages_per_request": counters["messages"] / counters["sent"],
        "rate_ratio_to_bare_grpc": _cpu_ms_a_request(bare) / _cpu_ms_a_request(readings),
    }


if __name__ == "__main__":
    main()
