"""The command `top`: shows what servers do, again and again."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from completion_client import Endpoint, EndpointError
from completion_server.client.options import admin_options
from completion_server.client.output import engine_state
from completion_server.client.top.figures import PERCENTILES, Figures, Times, figures_of
from completion_server.client.top.keys import reading_keys
from completion_server.client.top.poll import PolledServer, ServerState, poll_all
from completion_server.client.top.table import breaker, changes_of
from completion_server.client.top.view import frame

_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.2, 300.0
_MIN_TIMEOUT_S, _MAX_TIMEOUT_S = 2.0, 5.0
"""A server is down if it does not answer for an interval, within these bounds."""
_HINT = " · q quits"
_PICTURE_WIDTH = 150
_WIDE = 200
"""Columns of a page that is no terminal's."""

_DIGITS = 4


@click.command()
@admin_options("The servers' admin listeners", takes_several=True)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(_MIN_INTERVAL_S, _MAX_INTERVAL_S),
    default=2.0,
    show_default=True,
    help="Seconds between two readings; all rates and percentiles are those of the time between them.",
)
@click.option("--once", "is_once", is_flag=True, help="Print one interval and end; needs no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each interval, one a line.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="With --once: draw the page, too.")
def top(endpoints: tuple[Endpoint, ...], interval_s: float, is_once: bool, as_json: bool, svg: Path | None) -> None:
    """Show what servers are doing: latency, stages, queues, shed requests, caches, drafts.

    A server that does not answer is a row that says so. q ends the view. The columns that matter most stay on a
    narrow terminal. With --once the exit status is 0 if all servers serve, else 1.

    \b
    Examples:
      completion-server top
      completion-server top --admin us-east:50052,us-west:50052,eu-west:50052 --tls-ca ca.pem
      completion-server top --once --json | jq .all.figures.ttft_ms.p95
    """
    if not (is_once or as_json or sys.stdout.isatty()):
        raise click.UsageError("standard output is no terminal: give --once or --json")
    if svg is not None and not is_once:
        raise click.UsageError("--svg is for --once alone: the picture is of one interval")
    try:
        states = asyncio.run(_run(endpoints, interval_s, is_once, as_json))
    except EndpointError as error:
        raise click.UsageError(str(error)) from error
    except KeyboardInterrupt:
        sys.exit(130)
    if is_once:
        if svg is not None:
            _draw(states, interval_s, svg)
        sys.exit(0 if all(state.is_serving for state in states) else 1)


async def _run(endpoints: Sequence[Endpoint], interval_s: float, is_once: bool, as_json: bool) -> Sequence[ServerState]:
    """Poll and show until told to end; return the last states."""
    async with _opened(endpoints, min(max(interval_s, _MIN_TIMEOUT_S), _MAX_TIMEOUT_S)) as servers:
        if is_once:
            states = await _one_interval(servers, interval_s)
            _print(states, interval_s, as_json)
            return states
        if as_json:
            async for states in _intervals(servers, interval_s):
                _print(states, interval_s, as_json)
        return await _show(servers, interval_s)


@asynccontextmanager
async def _opened(endpoints: Sequence[Endpoint], timeout_s: float) -> AsyncIterator[list[PolledServer]]:
    async with AsyncExitStack() as stack:
        servers = []
        for endpoint in endpoints:
            servers.append(PolledServer(endpoint, timeout_s))
            stack.push_async_callback(servers[-1].close)
        yield servers


async def _one_interval(servers: Sequence[PolledServer], interval_s: float) -> list[ServerState]:
    await poll_all(servers)
    await asyncio.sleep(interval_s)
    return await poll_all(servers)


async def _intervals(servers: Sequence[PolledServer], interval_s: float) -> AsyncIterator[list[ServerState]]:
    """Yield the states after each interval. A slow server delays none of the later polls by more than its own time."""
    await poll_all(servers)
    next_at = time.monotonic() + interval_s
    while True:
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        next_at = max(next_at + interval_s, time.monotonic())
        yield await poll_all(servers)


def _print(states: Sequence[ServerState], interval_s: float, as_json: bool) -> None:
    at = datetime.now().astimezone()
    if as_json:
        click.echo(json.dumps(document(states, at)))
        sys.stdout.flush()
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    console.print(frame(states, at, interval_s, (console.width, sys.maxsize)))


def _draw(states: Sequence[ServerState], interval_s: float, path: Path) -> None:
    console = Console(highlight=False, record=True, width=_PICTURE_WIDTH, file=StringIO(), force_terminal=True)
    console.print(frame(states, datetime.now().astimezone(), interval_s, (_PICTURE_WIDTH, sys.maxsize)))
    console.save_svg(str(path), title="completion-server top")


async def _show(servers: Sequence[PolledServer], interval_s: float) -> list[ServerState]:
    """Show a frame after each interval, and anew after each change of the terminal's size, until q is pressed."""
    console, loop = Console(highlight=False), asyncio.get_running_loop()
    states, at = await poll_all(servers), datetime.now().astimezone()
    is_ended = asyncio.Event()
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def draw() -> None:
            live.update(frame(states, at, interval_s, console.size, _HINT), refresh=True)

        async def refresh() -> None:
            nonlocal states, at
            async for found in _intervals(servers, interval_s):
                states, at = found, datetime.now().astimezone()
                draw()

        loop.add_signal_handler(signal.SIGWINCH, draw)
        draw()
        with reading_keys(lambda key: is_ended.set() if key in "qQ" else None, is_ended.set):
            refreshing = asyncio.create_task(refresh())
            ending = asyncio.create_task(is_ended.wait())
            try:
                await asyncio.wait((refreshing, ending), return_when=asyncio.FIRST_COMPLETED)
                if refreshing.done():
                    refreshing.result()
            finally:
                loop.remove_signal_handler(signal.SIGWINCH)
                for task in (refreshing, ending):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
    return states


def document(states: Sequence[ServerState], at: datetime) -> dict[str, Any]:
    """Return the servers, and the figures of all together; a figure without data is null."""
    return {
        "time": at.isoformat(timespec="milliseconds"),
        "servers": [_server(state) for state in states],
        "all": {"serving": sum(state.is_serving for state in states), **_figures(figures_of(changes_of(states)))},
    }


def _server(state: ServerState) -> dict[str, Any]:
    found: dict[str, Any] = {"address": state.address, "health": state.health or None, "problem": state.problem or None}
    status = state.status
    if status is not None:
        found |= {
            "region": status.region or None,
            "version": status.version,
            "engine_state": engine_state(status),
            "engine_restarts": status.engine_restarts,
            "draining": status.draining,
            "live_sessions": status.live_sessions,
            "queued_requests": status.queued_requests,
            "running_requests": status.running_requests,
            "slots": status.slots,
            "breaker": breaker(status) or None,
        }
    return found | _figures(figures_of([state.change] if state.change else []))


def _figures(figures: Figures | None) -> dict[str, Any]:
    if figures is None:
        return {"figures": None}
    plain = asdict(figures)
    plain["ttft_ms"] = _named(figures.ttft_ms)
    plain["stages_ms"] = {stage: _named(times) for stage, times in figures.stages_ms.items()}
    return {"figures": _rounded(plain)}


def _named(times: Times) -> dict[str, float | None]:
    return {f"p{share * 100:.0f}": value for share, value in zip(PERCENTILES, times, strict=True)}


def _rounded(value: Any) -> Any:  # noqa: ANN401 - any part of a JSON document
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, _DIGITS) if isinstance(value, float) else value
