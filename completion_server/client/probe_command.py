"""The `probe` command: asks for completions as an editor that starts now would, and exports what it saw."""

import asyncio
import itertools
import math
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, Endpoint, ServiceError
from completion_client.endpoint import caller_metadata, with_port
from completion_server.client.options import failure, server_options

_METRICS_PORT = 9465
_USERS = 32
"""Names of users in turn, so that the hash of a region leads to all of its servers."""
NEAREST = "nearest"
"""Stands for the choice between all servers that the client library makes."""
_RESULTS = ("answered", "shed", "failed")
_BUCKETS_S = (0.02, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0, 5.0)
_PREFIX = '''def mean(values):
    """Return the arithmetic mean of the values."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def median_{number}(values):
    """Return the value in the middle of the sorted values."""
    ordered = '''


@dataclass(frozen=True, slots=True)
class Seen:
    """What an editor would have seen of one request."""

    result: str
    """answered, also without text; shed; or failed."""
    ttft_s: float | None = None
    """From the request, on an open connection, to its first text, or to its end without any; only if answered."""
    address: str = ""
    """The server that was reached."""
    why: str = ""
    """Why it failed."""


async def ask(endpoints: Sequence[Endpoint], user: str, number: int, timeout_s: float) -> Seen:
    """Connect anew to the nearest of the servers and ask for one completion."""
    request = pb.CompleteRequest(
        document_uri=f"file:///probe/{number}.py",
        language_id="python",
        prefix=_PREFIX.format(number=number),
        suffix="\n    return ordered[len(ordered) // 2]\n",
        trigger=pb.TRIGGER_AUTOMATIC,
        mode=pb.MODE_SINGLE_LINE,
        without_completion_cache=True,
    )
    ends_at, is_connected = time.monotonic() + timeout_s, False
    try:
        async with (
            asyncio.timeout(timeout_s),
            CompletionClient(endpoints, user=user, connect_timeout_s=timeout_s / 2) as client,
        ):
            await client.connect()
            is_connected = True
            completion = await client.complete(request, timeout_s=max(0.001, ends_at - time.monotonic()))
    except ServiceError as error:
        if is_connected or len(endpoints) > 1:
            return Seen("failed", why=f"{error.status.name}: {error.message}")
        return Seen("failed", why=await asyncio.to_thread(failure, error, endpoints[0], reached=False))
    except TimeoutError:
        return Seen("failed", why=f"no answer within {timeout_s:g} s")
    address = completion.address or ""
    if completion.finish_reason not in {"stop", "length"}:
        reason = completion.finish_reason or "no end"
        return Seen("shed" if reason == "shed" else "failed", address=address, why=completion.shed_reason or reason)
    first_ms = completion.total_ms if completion.ttft_ms is None else completion.ttft_ms
    return Seen("answered", first_ms / 1000, address)


class ProbeMetrics:
    """What probes saw, by the server that they asked."""

    def __init__(self, registry: CollectorRegistry, servers: Sequence[str], certificate: Path | None = None) -> None:
        """Register the metrics of `servers`. All series exist from the start, so that no first failure is lost.

        `certificate` is the file of the probe's own one, which each new connection reads again.
        """
        prefix = "completion_probe"
        requests = "Requests of the probe, by the server that was asked and the result."
        self._requests = Counter(f"{prefix}_requests", requests, ["server", "result"], registry=registry)
        ttft = "From a request of the probe to its first text, as an editor sees it."
        self._ttft = Histogram(f"{prefix}_ttft_seconds", ttft, ["server"], buckets=_BUCKETS_S, registry=registry)
        reached = "Requests of the probe that a server answered when it could choose between all of them."
        self._reached = Counter(f"{prefix}_reached", reached, ["server"], registry=registry)
        for server, result in itertools.product(servers, _RESULTS):
            self._ttft.labels(server)
            self._requests.labels(server, result)
        if certificate is not None:
            expiry = "When the probe's own certificate expires, in Unix time."
            gauge = Gauge(f"{prefix}_certificate_not_after_timestamp_seconds", expiry, registry=registry)
            gauge.set_function(partial(_expiry_of, certificate))

    def add(self, server: str, seen: Seen) -> None:
        """Count what was seen of a server."""
        self._requests.labels(server, seen.result).inc()
        if seen.ttft_s is not None:
            self._ttft.labels(server).observe(seen.ttft_s)
        if server == NEAREST and seen.address:
            self._reached.labels(seen.address).inc()


def _expiry_of(certificate: Path) -> float:
    """Return when the certificate of a file expires, in Unix seconds; not a number while it can't be read."""
    try:
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return math.nan


_Doors = dict[str, tuple[Endpoint, ...]]


@click.command()
@server_options
@click.option(
    "--interval", type=click.FloatRange(1, 300), default=10.0, show_default=True, help="Seconds between asks."
)
@click.option(
    "--timeout-ms", type=click.IntRange(1, 60_000), default=2000, show_default=True, help="To connect and to answer."
)
@click.option("--user", default="probe", show_default=True, help="What the names of the probe's users begin with.")
@click.option(
    "--metrics-listen",
    metavar="HOST[:PORT]",
    default=f"127.0.0.1:{_METRICS_PORT}",
    show_default=True,
    help="Where Prometheus finds the metrics.",
)
@click.option("--once", "is_once", is_flag=True, help="Ask each server once, say what was seen, and end.")
def probe(
    endpoints: tuple[Endpoint, ...], interval: float, timeout_ms: int, user: str, metrics_listen: str, is_once: bool
) -> None:
    """Ask servers again and again, as an editor that starts now would, and export success and latency.

    Each request has a connection of its own, so that it meets expired certificates and full proxies as a new editor
    does. Of several servers each is asked by itself, and the nearest as the client library chooses it. With --once the
    exit status is 0 if all answered, else 1.

    \b
    Examples:
      completion-server probe --once --server us-east.example.com:443 --tls-cert me.pem --tls-key me.key
      completion-server probe --server us-east:443,us-west:443 --metrics-listen 0.0.0.0
    """
    caller_metadata(user)
    doors: _Doors = {each.address: (each,) for each in endpoints}
    if len(endpoints) > 1:
        doors |= {NEAREST: endpoints}
    timeout_s = timeout_ms / 1000
    if is_once:
        sys.exit(asyncio.run(_ask_once(doors, user, timeout_s)))
    registry = CollectorRegistry()
    metrics = ProbeMetrics(registry, tuple(doors), endpoints[0].certificate)
    host, _, port = with_port(metrics_listen, _METRICS_PORT).rpartition(":")
    try:
        server, _thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, ValueError) as error:
        msg = f"--metrics-listen: can't listen on {metrics_listen}: {error}"
        raise click.UsageError(msg) from error
    click.echo(f"probing {', '.join(doors)}; metrics at http://{host}:{server.server_port}/metrics", err=True)
    asyncio.run(_ask_forever(doors, user, timeout_s, interval, metrics))


async def _ask_once(doors: _Doors, user: str, timeout_s: float) -> int:
    """Ask at each door and print what was seen; return the exit status."""
    found = await asyncio.gather(*(ask(each, user, 0, timeout_s) for each in doors.values()))
    for name, seen in zip(doors, found, strict=True):
        first = f"TTFT {1000 * seen.ttft_s:.0f} ms" if seen.ttft_s is not None else seen.why
        reached = seen.address if name == NEAREST else ""
        click.echo("  ".join(part for part in (name, seen.result, first, reached) if part))
    return 0 if all(seen.result == "answered" for seen in found) else 1


async def _ask_forever(doors: _Doors, user: str, timeout_s: float, interval_s: float, metrics: ProbeMetrics) -> None:
    """Ask at each door until SIGTERM or Ctrl-C."""

    async def ask_again(name: str, endpoints: Sequence[Endpoint]) -> None:
        number, next_at = 0, time.monotonic()
        while True:
            seen = await ask(endpoints, f"{user}-{number % _USERS}", number, timeout_s)
            metrics.add(name, seen)
            if seen.why:
                click.echo(f"{name}: {seen.result}: {seen.why}", err=True)
            number, next_at = number + 1, max(next_at + interval_s, time.monotonic())
            await asyncio.sleep(next_at - time.monotonic())

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask_again(name, endpoints)) for name, endpoints in doors.items()]
        await stop.wait()
        for task in tasks:
            task.cancel()
