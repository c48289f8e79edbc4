"""Measures the CPU time of a request through gRPC: of the server's process, and of the bare gRPC server's beside it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
from rich.console import Console

from loadtest.bench.common.front_end import LARGE_MODEL, ProcessWatch, bare_server
from loadtest.bench.common.server import ServerProcess
from loadtest.driving.live import Live
from loadtest.driving.run import RunProgress, run_scenario
from loadtest.report.figures import reasons_invalid
from loadtest.stats.run_stats import RunStats
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

_CONNECTIONS = 100
_NO_SHEDDING = ("shed.lag_ms=0", "shed.when=never")
"""On a busy machine the server would shed requests, which cost less than those that it serves."""


@dataclass(frozen=True, slots=True)
class TurnCost:
    """The cost of one turn of a server."""

    cpu_ms: float
    """CPU milliseconds of its process for a request."""
    messages: float
    """Messages that it sent for a request."""
    shed_share: float
    errors: int
    invalid: tuple[str, ...]
    """Reasons why the load tester's own latencies would not be valid. CPU time is, unless the rate was not kept."""


class FrontEnd:
    """A running server, which takes turns with the bare server."""

    def __init__(self, server: ServerProcess, scenario: Scenario, console: Console) -> None:
        """Send both the traffic of `scenario`."""
        self._server = server
        self._scenario = scenario
        self._console = console

    @classmethod
    @contextmanager
    def running(
        cls, config: Path, overrides: Sequence[str], scenario: Scenario, console: Console
    ) -> "Iterator[FrontEnd]":
        """Run a server with the scripted engine.

        Raises:
            StartError: it did not start.

        """
        server = ServerProcess(config, (*LARGE_MODEL, *_NO_SHEDDING, *overrides), has_metrics=True)
        try:
            yield cls(server, scenario, console)
        finally:
            server.stop()

    def turn(self) -> TurnCost:
        """Measure the server once."""
        ready = self._server.ready
        target = f"server=grpc://{ready['address']}?metrics={ready['metrics_address']}"
        return self._drive(target, self._server.pid)

    def bare_turn(self, messages: float) -> TurnCost:
        """Measure a bare server once, which sends as many messages for a request."""
        with bare_server(max(0.0, messages - 1)) as (address, pid):
            return self._drive(f"bare=grpc://{address}?", pid)

    def _drive(self, target: str, pid: int) -> TurnCost:
        spec = parse_target(f"{target}&connections={min(_CONNECTIONS, self._scenario.sessions)}")
        watch = ProcessWatch(psutil.Process(pid))
        with Live(self._console) as live:

            def show(progress: RunProgress) -> None:
                watch.look(progress)
                live.show(progress)

            result = run_scenario(self._scenario, [spec], workers=1, progress=show)
        if result.interrupted:
            raise click.Abort
        return _served(watch, result.stats_by_target[spec.name])


def _served(watch: ProcessWatch, stats: RunStats) -> TurnCost:
    counters = stats.total.counters
    sent = max(1, counters["sent"])
    # The watch counts due requests. An editor answers some of them from its cache, and does not send them.
    return TurnCost(
        cpu_ms=watch.cpu_ms_a_request * counters["intended"] / sent,
        messages=counters["messages"] / sent,
        shed_share=counters["outcome/shed"] / sent,
        errors=int(counters["errors"]),
        invalid=tuple(reasons_invalid(stats)),
    )
