"""Measures the front end's cost with ten thousand editors, compared with a gRPC server without logic.

The real front end, with the scheduler and metrics on, in front of the scripted engine at a large model's service times:
45 ms for a prompt, computed apart from the steps, 8 ms for a step, five draft tokens of which 82% are accepted in turn,
128 slots. Over loopback, generator included. The editors' streams share connections, as behind a proxy.

- The front end's part of a TTFT is the client's time from sending to the first text, less the server's reported time in
  the queue and until the engine's first token.
- CPU is that of the server process while requests come, the scripted engine included.
- Memory is the growth of the process from ready to the end, per session.
- The bare server then gets the same traffic, and answers with the same number of messages per request.
"""

from dataclasses import dataclass
from typing import Any

import click
import psutil
from rich.console import Console

from loadtest.bench.runner.benchmark import Result, ServerOptions, benchmark, option
from loadtest.bench.runner.figures import shown, text_table
from loadtest.bench.runner.front_end import LARGE_MODEL, ProcessWatch, bare_server, drive, editors
from loadtest.bench.runner.server import ServerProcess
from loadtest.report.figures import figures, reasons_invalid
from loadtest.stats import RunStats
from loadtest.traffic.scenario import Scenario

_BARE_SHARE, _MOST_BARE_S = 0.25, 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    sessions: tuple[int, ...] = option((10_000,), "May be repeated.", click.IntRange(1))
    rates: tuple[float, ...] = option(
        (1500.0, 750.0),
        "Asked by all editors together: how long they are away between spells of typing follows. May be repeated.",
        click.FloatRange(1),
        "--requests-per-s",
    )
    seconds: float = option(60.0, "Of traffic.", click.FloatRange(5))
    workers: int = option(1, "Processes of the generator.", click.IntRange(1))
    connections: int = option(
        100,
        "That carry all streams, as a proxy's do, at most 100 each; 0 gives each editor its own.",
        click.IntRange(0),
    )
    storm: bool = option(False, "All editors lose their streams in the middle, and come back at once.")
    seed: int = option(0, "Who types what and when.", int)


@benchmark(_Options)
def main(options: _Options, console: Console) -> Result:
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
    found = runs[0] | {"scenario": "editors-10k", "seconds": options.seconds, "runs": runs}
    names = [name for name in runs[0] if name != "sessions"]
    rows = tuple((name, *(shown(each[name], 2) for each in runs)) for name in names)
    headings = ("", *(f"{each['sessions']:,}" for each in runs))
    return Result(found, [text_table("The front end, by the number of editors", headings, rows)])


def _measure(calm: Scenario, options: _Options, console: Console) -> dict[str, Any]:
    scenario = calm
    if options.storm:
        storm = {"kind": "reconnect", "at_s": options.seconds / 2}
        scenario = Scenario.of(calm.model_dump() | {"events": (storm,)})
    shared = f"&connections={options.connections}" if options.connections else ""
    with ServerProcess(options.config, (*LARGE_MODEL, *options.overrides), has_metrics=True) as server:
        idle_rss_bytes = psutil.Process(server.pid).memory_info().rss
        target = f"server=grpc://{server.ready['address']}?metrics={server.ready['metrics_address']}{shared}"
        stats, watch = drive(scenario, target, server.pid, console, options.workers)
        deltas = max(0, stats.total.counters["messages"] / max(1, stats.total.counters["sent"]) - 1)
        server.process.pause()  # the bare server has the machine to itself
        quick = calm.scaled(duration_s=min(_MOST_BARE_S, options.seconds * _BARE_SHARE))
        with bare_server(deltas) as (address, pid):
            _, bare = drive(quick, f"bare=grpc://{address}?{shared}", pid, console, options.workers)
    for reason in reasons_invalid(stats):
        console.print(f"{scenario.sessions:,} sessions: not valid: {reason}", style="red")
    return _figures(stats, scenario, watch, bare, idle_rss_bytes)


def _figures(
    stats: RunStats, scenario: Scenario, server: ProcessWatch, bare: ProcessWatch, idle_rss_bytes: int
) -> dict[str, Any]:
    found, counters = figures(stats, scenario.criteria), stats.total.counters
    return {
        "sessions": scenario.sessions,
        "requests_per_s": found["offered_per_s"],
        "errors": counters["errors"],
        "front_end_ttft_p50_ms": found["front_end_ms_p50"],
        "front_end_ttft_p99_ms": found["front_end_ms_p99"],
        "server_kib_per_session": (server.readings[-1].rss_bytes - idle_rss_bytes) / 1024 / scenario.sessions,
        "server_growth_mib_per_min": server.growth_mib_per_min,
        "server_cpu_s_per_1000_requests": server.cpu_ms_a_request,
        "bare_cpu_s_per_1000_requests": bare.cpu_ms_a_request,
        "messages_per_request": counters["messages"] / counters["sent"],
        "rate_ratio_to_bare_grpc": bare.cpu_ms_a_request / server.cpu_ms_a_request,
        "generator_lag_p99_ms": found["lag_ms_p99"],
        "ttft_p50_ms": found["ttft_ms_p50"],
        "ttft_p99_ms": found["ttft_ms_p99"],
        "seen_per_s": found["seen_per_s"],
        "shed_share": found["shed_share"],
        "sessions_lost": found["sessions_lost"],
        "reconnects": found["reconnects"],
        "reconnect_p99_ms": found["reconnect_ms_p99"],
        "reconnect_p999_ms": found["reconnect_ms_p999"],
    }


if __name__ == "__main__":
    main()
