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

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click
import psutil
from rich.console import Console
from rich.table import Table

from loadtest.bench.common.command import config_options, expected_errors, json_option, typing_seed_option
from loadtest.bench.common.figures import report_console, rounded
from loadtest.bench.common.front_end import LARGE_MODEL, ProcessWatch, bare_server, editors
from loadtest.bench.common.server import ServerProcess
from loadtest.driving.live import Live
from loadtest.driving.run import RunProgress, run_scenario
from loadtest.processes.child import end_on_sigterm
from loadtest.report.figures import figures, reasons_invalid
from loadtest.stats.run_stats import RunStats
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

_BARE_SHARE, _MOST_BARE_S = 0.25, 15.0


class _Options(TypedDict):
    sessions: tuple[int, ...]
    rates: tuple[float, ...]
    seconds: float
    workers: int
    connections: int
    storm: bool
    seed: int


@dataclass(frozen=True, slots=True)
class SessionsMeasurement:
    """The measurements at one session count."""

    stats: RunStats
    scenario: Scenario
    server: ProcessWatch
    idle_rss_bytes: int
    bare_cpu_ms_a_request: float

    def figures(self) -> dict[str, float]:
        """Return the figures."""
        found = figures(self.stats, self.scenario.criteria)
        sessions = self.scenario.sessions
        return {
            "sessions": sessions,
            "requests_per_s": found["offered_per_s"],
            "errors": self.stats.total.counters["errors"],
            "front_end_ttft_p50_ms": found["front_end_ms_p50"],
            "front_end_ttft_p99_ms": found["front_end_ms_p99"],
            "server_kib_per_session": (self.server.readings[-1].rss_bytes - self.idle_rss_bytes) / 1024 / sessions,
            "server_growth_mib_per_min": self.server.growth_mib_per_min,
            "server_cpu_s_per_1000_requests": self.server.cpu_ms_a_request,
            "bare_cpu_s_per_1000_requests": self.bare_cpu_ms_a_request,
            "messages_per_request": self.stats.total.counters["messages"] / self.stats.total.counters["sent"],
            "rate_ratio_to_bare_grpc": self.bare_cpu_ms_a_request / self.server.cpu_ms_a_request,
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


@click.command()
@config_options
@click.option(
    "--sessions", type=click.IntRange(1), multiple=True, default=(10_000,), show_default=True, help="May be repeated."
)
@click.option(
    "--requests-per-s",
    "rates",
    type=click.FloatRange(1),
    multiple=True,
    default=(1500.0, 750.0),
    show_default=True,
    help="Asked by all editors together: how long they are away between spells of typing follows. May be repeated.",
)
@click.option("--seconds", type=click.FloatRange(5), default=60.0, show_default=True, help="Of traffic.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes of the generator.")
@click.option(
    "--connections",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="That carry all streams, as a proxy's do, at most 100 each; 0 gives each editor its own.",
)
@click.option("--storm", is_flag=True, help="All editors lose their streams in the middle, and come back at once.")
@typing_seed_option
@json_option
def main(config: Path, overrides: tuple[str, ...], as_json_only: bool, **options: Unpack[_Options]) -> None:
    """Measure the front end. The last line is a JSON object: the first run, and under "runs" all of them.

    \b
    Example:
        python -m loadtest.bench.sessions --seconds 300 --requests-per-s 750
        python -m loadtest.bench.sessions --sessions 12000 --storm
    """
    end_on_sigterm()
    console = Console(stderr=True)
    with expected_errors():
        runs = [
            _measure(config, overrides, _scenario(sessions, rate, options), options, console)
            for sessions in options["sessions"]
            for rate in options["rates"]
        ]
    found = [{name: rounded(value) for name, value in run.figures().items()} for run in runs]
    for run in runs:
        for reason in reasons_invalid(run.stats):
            console.print(f"{run.scenario.sessions:,} sessions: not valid: {reason}", style="red")
    if not as_json_only:
        _print(found)
    click.echo(json.dumps(found[0] | {"scenario": runs[0].scenario.name, "seconds": options["seconds"], "runs": found}))


def _scenario(sessions: int, requests_per_s: float, options: _Options) -> Scenario:
    scenario = editors(sessions, requests_per_s, options["seconds"], options["seed"])
    if not options["storm"]:
        return scenario
    storm = {"kind": "reconnect", "at_s": options["seconds"] / 2}
    return Scenario.of(scenario.model_dump() | {"events": (storm,)})


def _measure(
    config: Path, overrides: Sequence[str], scenario: Scenario, options: _Options, console: Console
) -> SessionsMeasurement:
    calm = scenario.model_copy(update={"events": ()})
    quick = calm.scaled(duration_s=min(_MOST_BARE_S, options["seconds"] * _BARE_SHARE))
    with ExitStack() as stack:
        server = ServerProcess(config, (*LARGE_MODEL, *overrides), has_metrics=True)
        stack.callback(server.stop)
        watch = ProcessWatch(psutil.Process(server.pid))
        idle_rss_bytes = watch.process.memory_info().rss
        address, metrics = server.ready["address"], server.ready["metrics_address"]
        stats = _drive(
            scenario, f"server=grpc://{address}?metrics={metrics}{_shared(options)}", watch, options, console
        )
        sent = max(1, stats.total.counters["sent"])
        deltas = max(0, stats.total.counters["messages"] / sent - 1)
        server.process.pause()  # the bare server has the machine to itself
        bare = _bare(quick, deltas, options, console)
    return SessionsMeasurement(stats, scenario, watch, idle_rss_bytes, bare)


def _shared(options: _Options) -> str:
    return f"&connections={options['connections']}" if options["connections"] else ""


def _bare(scenario: Scenario, deltas: float, options: _Options, console: Console) -> float:
    """Return the bare server's CPU milliseconds per request."""
    with bare_server(deltas) as (address, pid):
        watch = ProcessWatch(psutil.Process(pid))
        _drive(scenario, f"bare=grpc://{address}?{_shared(options)}", watch, options, console)
    return watch.cpu_ms_a_request


def _drive(scenario: Scenario, target: str, watch: ProcessWatch, options: _Options, console: Console) -> RunStats:
    spec = parse_target(target)
    with Live(console) as live:

        def show(progress: RunProgress) -> None:
            watch.look(progress)
            live.show(progress)

        result = run_scenario(scenario, [spec], workers=options["workers"], progress=show)
    if result.interrupted:
        raise click.Abort
    return result.stats_by_target[spec.name]


def _print(found: Sequence[dict[str, Any]]) -> None:
    table = Table(title="The front end, by the number of editors", title_justify="left")
    table.add_column("")
    for each in found:
        table.add_column(f"{each['sessions']:,}", justify="right")
    for name in found[0]:
        if name != "sessions":
            table.add_row(name, *("-" if each[name] is None else f"{each[name]:,.2f}" for each in found))
    report_console().print(table)


if __name__ == "__main__":
    main()
