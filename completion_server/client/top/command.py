"""The command `top`: shows what servers do, again and again."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import click
import grpc
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_client import Endpoint, ServiceError, UnauthenticatedError
from completion_client.errors import error_of_call
from completion_client.health import SERVING
from completion_server.client.operator_commands import health_of
from completion_server.client.options import admin_options, failure
from completion_server.client.output import engine_state
from completion_server.client.top.metrics import NAMES, Reading, figures_of, parse

_PAGE_COLUMNS = 200  # without a terminal
_NOTHING = "·"  # a figure without data
_COLUMNS = (
    "server", "health", "req/s", "in\ntime", "p50\nms", "p95\nms", "queue", "run-\nning", "shed", "cache",
    "prefix\ncache", "K", "accept",
)  # fmt: skip
# A server that was down is asked again with each poll, not after gRPC's two minutes.
_CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1_000))
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class ServerState:
    """What one server answered to one poll."""

    address: str
    health: str = ""  # "" without an answer
    status: admin_pb2.GetStatusResponse | None = None
    counted: Reading | None = None
    """Since the last poll; None before the second one, and for a server that offers no metrics."""
    problem: str = ""  # a sentence; "" if all calls were answered


class PolledServer:
    """One server: its channel, and its last reading."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Open a channel, which connects at the first poll. Raises EndpointError if it lacks a PEM file or a token."""
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self.channel = endpoint.open_channel(_CHANNEL_OPTIONS)
        self._admin = AdminServiceStub(self.channel)
        self._before: Reading | None = None
        self._unreachable: dict[grpc.StatusCode, str] = {}
        """Why there has been no answer since the last one; it takes seconds to find out."""

    def poll(self) -> ServerState:
        """Ask the server; a server that does not answer is a state, too."""
        address, before, self._before = self._endpoint.address, self._before, None
        try:
            status = self._admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=self._timeout_s)
            health = health_of(self.channel, status, self._timeout_s)
        except (grpc.RpcError, ServiceError) as error:
            return ServerState(address, problem=self._explain(error))
        self._unreachable.clear()
        try:
            page = self._admin.GetMetrics(admin_pb2.GetMetricsRequest(names=NAMES), timeout=self._timeout_s)
            self._before = now = parse(page.text, page.uptime_s)
        except (grpc.RpcError, ServiceError, ValueError) as error:
            why = error_of_call(error).message if isinstance(error, grpc.RpcError) else error
            problem = f"{address}, version {status.version}: its metrics can't be read: {why}"
            return ServerState(address, health, status, problem=problem)
        return ServerState(address, health, status, None if before is None else now.since(before))

    def _explain(self, call: grpc.RpcError | ServiceError) -> str:
        """Return why there is no answer. A refused token is fetched anew for the next poll."""
        error, token = call if isinstance(call, ServiceError) else error_of_call(call), self._endpoint.token
        if token is not None and isinstance(error, UnauthenticatedError):
            token.refused(token.at_hand() or "", error)
        if error.status not in _NO_ANSWER:
            return f"Error: {failure(error, self._endpoint, reached=True)}"
        if error.status not in self._unreachable:
            self._unreachable[error.status] = f"Error: {failure(error, self._endpoint, reached=False)}"
        return self._unreachable[error.status]


@click.command()
@admin_options("The servers' admin listeners", takes_several=True)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 300.0),
    default=2.0,
    show_default=True,
    help="Seconds between two readings; all rates and percentiles are those of the time between them.",
)
@click.option("--once", "is_once", is_flag=True, help="Print one interval and end; needs no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each interval, one a line.")
def top(endpoints: tuple[Endpoint, ...], interval_s: float, is_once: bool, as_json: bool) -> None:
    """Show what servers are doing: latency, queues, shed requests, caches, drafts. Ctrl-C ends the view.

    A server that does not answer is a row that says so. With --once the exit status is 0 if all servers serve, else 1.

    \b
    Examples:
      completion-server top --admin us-east:50052,us-west:50052,eu-west:50052 --tls-ca ca.pem
      completion-server top --once --json | jq .all.figures.ttft_ms.p95
    """
    if not (is_once or as_json or sys.stdout.isatty()):
        raise click.UsageError("standard output is no terminal: give --once or --json")
    try:
        with ExitStack() as stack:
            timeout_s = min(max(interval_s, 2.0), 5.0)  # a server that takes longer is down
            servers = [PolledServer(each, timeout_s) for each in endpoints]
            for each in servers:
                stack.enter_context(each.channel)
            _show(servers, interval_s, is_once, as_json)
    except KeyboardInterrupt:
        sys.exit(130)


def _show(servers: Sequence[PolledServer], interval_s: float, is_once: bool, as_json: bool) -> None:
    """Show the servers after each interval, and end after the first with `is_once`."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PAGE_COLUMNS)
    states = next(polls := _polls(servers, interval_s))
    if not (is_once or as_json):
        with Live(page(states, interval_s), console=console, screen=True) as live:
            for states in polls:
                live.update(page(states, interval_s), refresh=True)
    for states in polls:
        if as_json:
            click.echo(json.dumps(document(states)))
        else:
            console.print(page(states, interval_s))
        if is_once:
            sys.exit(0 if all(state.health == SERVING for state in states) else 1)


def _polls(servers: Sequence[PolledServer], interval_s: float) -> Iterator[list[ServerState]]:
    """Yield the states now and after each interval. All servers are asked at the same time."""
    with ThreadPoolExecutor(len(servers)) as threads:
        while True:
            begun_s = time.monotonic()
            yield list(threads.map(PolledServer.poll, servers))
            time.sleep(max(0.0, begun_s + interval_s - time.monotonic()))


def document(states: Sequence[ServerState]) -> dict[str, Any]:
    """Return the servers, and the figures of all together; a figure without data is null."""
    return {
        "time": datetime.now().astimezone().isoformat(timespec="milliseconds"),
        "servers": [_server(state) for state in states],
        "all": {"serving": sum(state.health == SERVING for state in states), "figures": _figures(states)},
    }


def _server(state: ServerState) -> dict[str, Any]:
    found: dict[str, Any] = {"address": state.address, "health": state.health or None, "problem": state.problem or None}
    if (status := state.status) is not None:
        found |= {"region": status.region or None, "version": status.version, "engine_state": engine_state(status)}
        counts = "engine_restarts", "draining", "live_sessions", "queued_requests", "running_requests", "slots"
        found |= {name: getattr(status, name) for name in counts}
    return found | {"figures": _figures([state])}


def _figures(states: Sequence[ServerState]) -> dict[str, Any] | None:
    counted = [state.counted for state in states if state.counted is not None]
    return asdict(figures_of(counted)) if counted else None


def page(states: Sequence[ServerState], interval_s: float) -> Group:
    """Return a row for each server and, with several, one for all together. Servers that don't serve come first."""
    title = f"completion-server top  {datetime.now().astimezone():%H:%M:%S} · each {interval_s:g} s"
    table = Table(*_COLUMNS, box=None, padding=(0, 1, 0, 0))
    table.columns[0].overflow = "fold"  # a long address on a narrow terminal
    for column in table.columns[1:]:
        column.no_wrap, column.justify = True, "right"
    ranked = sorted(states, key=lambda state: state.health == SERVING)
    for state in ranked:
        region = f"{state.status.region} " if state.status and state.status.region else ""
        table.add_row(region + state.address, _health(state), *_cells([state]))
    if len(states) > 1:
        serving = sum(state.health == SERVING for state in states)
        table.add_row("all", f"{serving}/{len(states)} serving", *_cells(states), style="bold")
    problems = (Text(state.problem, style="red") for state in ranked if state.problem)
    return Group(Text(title, style="dim"), *problems, table)


def _health(state: ServerState) -> Text:
    if state.health == SERVING:
        return Text("serving", style="green")
    words = "draining" if state.status and state.status.draining else state.health.lower().replace("_", " ") or "down"
    engine = f", engine {engine_state(state.status)}" if state.status else ""
    return Text(words + engine, style="bold red")


def _cells(states: Sequence[ServerState]) -> list[str]:
    """Return the cells of one server or of all, from the third column on."""
    figures, known = _figures(states), [state.status for state in states if state.status is not None]
    running = f"{sum(each.running_requests for each in known)}/{sum(each.slots for each in known)}"
    queue = [str(sum(each.queued_requests for each in known)), running] if known else [_NOTHING] * 2
    if figures is None:
        return [*[_NOTHING] * 4, *queue, *[_NOTHING] * 5]
    return [
        f"{figures['requests_per_s']:.1f}",
        _shown(figures["in_time_share"], "{:.1%}"),
        *(_shown(ms, "{:.1f}") for ms in figures["ttft_ms"].values()),
        *queue,
        *(_shown(figures[name], "{:.0%}") for name in ("shed_share", "cache_hit_share", "prefix_cache_share")),
        "–".join(dict.fromkeys(map(str, figures["num_speculative_tokens"] or ()))) or _NOTHING,
        _shown(figures["acceptance"], "{:.0%}"),
    ]


def _shown(value: float | None, form: str) -> str:
    return _NOTHING if value is None else form.format(value)
