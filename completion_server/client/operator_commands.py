"""The commands `status` and `drain`, and the calls to the admin listener that operator commands share."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import grpc
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Table

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_client import Endpoint, blocking
from completion_client.errors import error_of_call
from completion_client.health import SERVING
from completion_server.client.options import admin_options, fail, failure
from completion_server.client.output import engine_state, plain, rows_table
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
            click.echo(f"Error: {failure(error_of_call(error), endpoint, reached=reached)}", err=True)
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
    answer = ask_admin(endpoint, "Drain", admin_pb2.DrainRequest(grace_ms=grace_ms))
    click.echo(f"{endpoint.address} is draining; requests still to finish: {answer.live_requests}")


def as_dict(status: admin_pb2.GetStatusResponse) -> dict[str, Any]:
    """Return the status under the contract's names, with counts as numbers."""
    found = plain(status)
    counts: dict[str, Any] = {"engine_state": engine_state(status), "ended_requests": dict(status.ended_requests)}
    if status.HasField("cache"):
        counts["cache"] = {name: int(value) for name, value in found["cache"].items()}
    return found | counts


def ask_admin(endpoint: Endpoint, method: str, request: Message) -> Any:  # noqa: ANN401 - the method's response
    """Call a method of the admin service. A call that fails ends the command."""
    with endpoint.open_channel() as channel:
        reached = blocking.connect(channel, TIMEOUT_S)
        try:
            return getattr(AdminServiceStub(channel), method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            fail(error_of_call(error), endpoint, reached=reached)


def health_of(channel: grpc.Channel, status: admin_pb2.GetStatusResponse, timeout_s: float = TIMEOUT_S) -> str:
    """Return the server's health; derive it from the status if the listener offers no health checks."""
    try:
        return blocking.check_health(channel, timeout_s)
    except grpc.RpcError:
        is_serving = status.engine_state == admin_pb2.ENGINE_STATE_READY and not status.draining
        return SERVING if is_serving else "NOT_SERVING"


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
    fewer = f"{status.slots} of scheduling.max_slots = {status.max_slots}: {status.slots_reason}"
    rows = (
        ("server", f"{address}, version {status.version}, up for {_duration(status.uptime_s)}"),
        ("region", status.region),
        ("round trip", f"{round_trip_ms:.1f} ms"),
        ("health", health + (", draining" if status.draining else "")),
        *_engine(status),
        ("prompt", status.prompt_template),
        ("sessions", str(status.live_sessions)),
        ("requests", f"{status.running_requests} of {status.slots} slots in use, {status.queued_requests} waiting"),
        ("slots", fewer if status.slots_reason else ""),
        *_shared(status),
        ("ended", _counts(status.ended_requests) or "none"),
        ("shed", _counts(shed)),
    )
    known = [(name, value) for name, value in rows if value or name == "prompt"]
    return rows_table(known, {"health": "bold green" if health == SERVING else "bold red"})


def _engine(status: admin_pb2.GetStatusResponse) -> Iterator[tuple[str, str]]:
    """Yield the rows of the engine and of its models."""
    failure = f" (last failure: {status.engine_failure})" if status.engine_failure else ""
    yield "engine", f"{engine_state(status)}, restarted {_times(status.engine_restarts, 'time')}{failure}"
    revision, of_draft = (
        f", revision {each}" if each else "" for each in (status.model_revision, status.draft_model_revision)
    )
    yield "model", status.model + revision
    drafted = f"{status.draft_model}{of_draft}, up to {status.num_speculative_tokens} tokens a step"
    yield "draft", drafted if status.draft_model else "none"


def _shared(status: admin_pb2.GetStatusResponse) -> Iterator[tuple[str, str]]:
    """Yield the rows of what replicas share, and of the completion cache; none for a server without them."""
    if status.HasField("replication"):
        shared = status.replication
        outages = f", {_times(shared.redis_outages, 'outage')}" if shared.redis_outages else ""
        yield "redis", ("available" if shared.redis_available else f"away: {shared.redis_failure}") + outages
        yield "replica", shared.replica_id
        listening = "" if shared.listening else "not listening, "
        yield "lanes", f"{listening}{shared.messages_received} messages of other replicas"
    if status.HasField("cache"):
        cache = status.cache
        hits = cache.local_hits + cache.shared_hits
        lookups = hits + cache.misses
        kept = f"{cache.entries} completions, {cache.bytes / 2**20:.1f} MiB"
        answered = f"answered {hits / (lookups or 1):.0%} of {lookups} lookups"
        levels = f": {cache.local_hits} here, {cache.shared_hits} from Redis" if status.HasField("replication") else ""
        yield "cache", f"{kept}; {answered}{levels}" if lookups else f"{kept}; no lookups yet"


def _times(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
