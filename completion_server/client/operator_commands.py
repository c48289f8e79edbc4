"""The commands `status` and `drain`, and the calls to the admin listener that operator commands share."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
import grpc
from rich.console import Console
from rich.table import Table

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_client import Endpoint, blocking
from completion_client.errors import error_of_call
from completion_client.health import SERVING
from completion_server.client.options import admin_options, fail, failure
from completion_server.client.output import engine_state, health_from, plain, rows_table
from completion_server.client.top.metrics import parse

TIMEOUT_S = 5.0


@click.command()
@admin_options(takes_several=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each server instead.")
def status(endpoints: Sequence[Endpoint], as_json: bool) -> None:
    """Show what a running server is doing, and how far it is. Several servers are shown one after another.

    The exit status is 0 if the servers serve, 1 if one does not or can't be reached.

    \b
    Examples:
      completion-server status
      completion-server status --json | jq .running_requests
    """
    served = [_show(endpoint, as_json) for endpoint in endpoints]
    sys.exit(0 if all(served) else 1)


def _show(endpoint: Endpoint, as_json: bool) -> bool:
    """Show one server; return whether it serves."""
    with endpoint.open_channel() as channel:
        reached = blocking.connect(channel, TIMEOUT_S)
        asked_s = time.perf_counter()
        try:
            answer = AdminServiceStub(channel).GetStatus(admin_pb2.GetStatusRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            click.echo(failure(error_of_call(error), endpoint, reached=reached), err=True)
            return False
        round_trip_ms = (time.perf_counter() - asked_s) * 1000
        health = health_of(channel, answer)
        shed = _shed_requests(channel, answer)
    if as_json:
        found = {"server": endpoint.address, "round_trip_ms": round(round_trip_ms, 3), "health": health}
        click.echo(json.dumps(found | as_dict(answer) | {"shed_requests": shed}))
    else:
        Console(highlight=False).print(_table(endpoint.address, round_trip_ms, health, answer, shed))
    return health == SERVING


@click.command()
@admin_options()
@click.option("--grace-ms", type=click.IntRange(0), help="How long accepted requests may take to finish.")
def drain(endpoint: Endpoint, grace_ms: int | None) -> None:
    """Let a server finish its accepted requests, then stop it.

    The server accepts no new requests and answers health checks with NOT_SERVING.

    \b
    Examples:
      completion-server drain
      completion-server drain --grace-ms 2000
    """
    with calling(endpoint) as channel:
        answer = AdminServiceStub(channel).Drain(admin_pb2.DrainRequest(grace_ms=grace_ms), timeout=TIMEOUT_S)
    click.echo(f"{endpoint.address} is draining; requests still to finish: {answer.live_requests}")


def as_dict(status: admin_pb2.GetStatusResponse) -> dict[str, Any]:
    """Return the status under the contract's names, with counts as numbers."""
    found = plain(status)
    counts: dict[str, Any] = {"engine_state": engine_state(status), "ended_requests": dict(status.ended_requests)}
    if status.HasField("cache"):
        counts["cache"] = {name: int(value) for name, value in found["cache"].items()}
    return found | counts


@contextmanager
def calling(endpoint: Endpoint) -> Iterator[grpc.Channel]:
    """Open a channel. A call that fails on it ends the command."""
    with endpoint.open_channel() as channel:
        reached = blocking.connect(channel, TIMEOUT_S)
        try:
            yield channel
        except grpc.RpcError as error:
            fail(error_of_call(error), endpoint, reached=reached)


def health_of(channel: grpc.Channel, status: admin_pb2.GetStatusResponse, timeout_s: float = TIMEOUT_S) -> str:
    """Return the server's health; derive it from the status if the listener offers no health checks."""
    try:
        return blocking.check_health(channel, timeout_s)
    except grpc.RpcError:
        return health_from(status)


def _shed_requests(channel: grpc.Channel, status: admin_pb2.GetStatusResponse) -> dict[str, int]:
    """Return the number of shed requests by reason; empty if the server does not offer its metrics."""
    if not status.ended_requests.get("shed"):
        return {}
    chosen = admin_pb2.GetMetricsRequest(names=["completion_requests"])
    try:
        page = AdminServiceStub(channel).GetMetrics(chosen, timeout=TIMEOUT_S)
    except grpc.RpcError:
        return {}
    counts = parse(page.text, page.uptime_s).by("completion_requests_total", "shed_reason", outcome="shed")
    return {reason: round(count) for reason, count in sorted(counts.items()) if count}


def _table(
    address: str, round_trip_ms: float, health: str, status: admin_pb2.GetStatusResponse, shed: Mapping[str, int]
) -> Table:
    engine = f"{engine_state(status)}, restarted {_times(status.engine_restarts, 'time')}"
    revision, of_draft = (
        f", revision {each}" if each else "" for each in (status.model_revision, status.draft_model_revision)
    )
    draft = f"{status.draft_model}{of_draft}, up to {status.num_speculative_tokens} tokens a step"
    rows = (
        ("server", f"{address}, version {status.version}, up for {_duration(status.uptime_s)}"),
        *([("region", status.region)] if status.region else []),
        ("round trip", f"{round_trip_ms:.1f} ms"),
        ("health", health + (", draining" if status.draining else "")),
        ("engine", engine + (f" (last failure: {status.engine_failure})" if status.engine_failure else "")),
        ("model", status.model + revision),
        ("draft", draft if status.draft_model else "none"),
        ("prompt", status.prompt_template),
        ("sessions", str(status.live_sessions)),
        ("requests", f"{status.running_requests} of {status.slots} slots in use, {status.queued_requests} waiting"),
        *([("slots", _slots(status))] if status.slots_reason else []),
        *_replication(status),
        *([("cache", _cache(status))] if status.HasField("cache") else []),
        ("ended", _counts(status.ended_requests) or "none"),
        *([("shed", _counts(shed))] if shed else []),
    )
    return rows_table(rows, {"health": "bold green" if health == SERVING else "bold red"})


def _replication(status: admin_pb2.GetStatusResponse) -> Iterator[tuple[str, str]]:
    """Yield the rows of what replicas share; none for a server that shares nothing."""
    if not status.HasField("replication"):
        return
    shared = status.replication
    outages = f", {_times(shared.redis_outages, 'outage')}" if shared.redis_outages else ""
    yield "redis", ("available" if shared.redis_available else f"away: {shared.redis_failure}") + outages
    yield "replica", shared.replica_id
    listening = "" if shared.listening else "not listening, "
    yield "lanes", f"{listening}{shared.messages_received} messages of other replicas"


def _times(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _cache(status: admin_pb2.GetStatusResponse) -> str:
    cache = status.cache
    hits, lookups = cache.local_hits + cache.shared_hits, cache.local_hits + cache.shared_hits + cache.misses
    kept = f"{cache.entries} completions, {cache.bytes / 2**20:.1f} MiB"
    if not lookups:
        return f"{kept}; no lookups yet"
    share = f"answered {hits / lookups:.0%} of {lookups} lookups"
    levels = f": {cache.local_hits} here, {cache.shared_hits} from Redis" if status.HasField("replication") else ""
    return f"{kept}; {share}{levels}"


def _slots(status: admin_pb2.GetStatusResponse) -> str:
    return f"{status.slots} of scheduling.max_slots = {status.max_slots}: {status.slots_reason}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
