"""The command top: figures of an interval, the page and the JSON, and the live view in a terminal."""

import asyncio
import json
import math
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest
from client_fakes import SERVING, Failure, FakeServer, Run, Serve
from grpc import StatusCode
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from rich.console import Console

from completion.v1 import admin_pb2
from completion_client import Endpoint, Token
from completion_server.client.top.command import PolledServer, ServerState, page, top
from completion_server.client.top.metrics import Reading, figures_of, merged, parse, quantile
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.ops.families import BUCKETS_S
from tests.support.scripted import letters
from tests.support.server import RunningServer, ask, eventually, make_config, request, run_server

TIMES = ServiceTimes(0.002, 0.0, 0.001, 0.0, 0.0, 0.0)
READY = admin_pb2.GetStatusResponse(version="0.0.9", engine_state=admin_pb2.ENGINE_STATE_READY, slots=8)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((10, 20, 20, 20), 0.5, 0.1),  # at the end of the first bucket
        ((10, 20, 20, 20), 0.75, 0.15),  # in the middle of the second one
        ((10, 20, 20, 20), 0.25, 0.05),  # the first one begins at 0
        ((0, 0, 10, 10), 0.5, 0.3),  # empty buckets before
        ((5, 5, 5, 10), 0.99, 0.4),  # beyond the last finite bound
        ((0, 0, 0, 0), 0.5, None),
        ((), 0.5, None),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(
    counts: tuple[float, ...], share: float, expected: float | None
) -> None:
    found = quantile(dict(zip((0.1, 0.2, 0.4, math.inf), counts, strict=False)), share)
    assert found == (None if expected is None else pytest.approx(expected))


def test_histograms_of_servers_are_added_by_the_bounds_that_they_share() -> None:
    new, old = {"0.1": 1.0, "0.2": 2.0, "0.4": 3.0, "+Inf": 4.0}, {"0.1": 1.0, "0.4": 2.0, "+Inf": 3.0}
    assert list(merged([new, old, {}]).items()) == [(0.1, 2.0), (0.4, 5.0), (math.inf, 7.0)]
    assert merged([]) == {}


def test_percentiles_are_those_of_the_interval_and_leave_out_prefetches() -> None:
    registry = CollectorRegistry()
    ttft = Histogram("completion_ttft_seconds", "Time.", ["trigger"], buckets=BUCKETS_S, registry=registry)
    readings = []
    for seconds in (0.9, 0.03):
        for trigger in ("automatic", "explicit"):
            for _ in range(1000):
                ttft.labels(trigger).observe(seconds)
        ttft.labels("prefetch").observe(1.9)
        readings.append(parse(generate_latest(registry).decode(), seconds))
    before, now = readings[0], replace(readings[1], uptime_s=3.0)
    p50, p95 = figures_of([now.since(before)]).ttft_ms.values()
    assert 20 < (p50 or 0) < (p95 or 0) <= 40
    assert figures_of([now.since(now)]).ttft_ms == {"p50": None, "p95": None}


PAGE = """
completion_requests_total{{outcome="stop",trigger="automatic",shed_reason="",region="{region}"}} {stop}
completion_requests_total{{outcome="shed",trigger="automatic",shed_reason="overload",region="{region}"}} {shed}
completion_slo_requests_total{{result="in_time",region="{region}"}} {stop}
completion_slo_requests_total{{result="shed",region="{region}"}} {shed}
completion_tokens_total{{kind="drafted"}} {drafted}
completion_tokens_total{{kind="accepted_draft"}} {accepted}
completion_cache_hits_total{{level="local"}} {stop}
completion_cache_hits_total{{level="shared"}} {stop}
completion_cache_misses_total{{level="local",reason="absent"}} {stop}
completion_num_speculative_tokens {k}
"""


def counted(region: str = "us", stop: int = 0, shed: int = 0, k: int = 2, **counts: int) -> Reading:
    """Return what was counted in two seconds."""
    return parse(PAGE.format(region=region, stop=stop, shed=shed, k=k, **{"drafted": 0, "accepted": 0} | counts), 2.0)


def test_figures_are_rates_and_shares_and_weigh_servers_by_what_they_counted() -> None:
    one = figures_of([counted(stop=30, shed=10, drafted=50, accepted=40)])
    assert (one.requests_per_s, one.in_time_share, one.shed_share) == (20.0, 0.75, 0.25)
    assert (one.acceptance, one.num_speculative_tokens) == (0.8, (2, 2))
    assert one.cache_hit_share == 1.0  # half from memory; Redis answered each miss
    assert one.prefix_cache_share is None  # no prompt was computed
    two = figures_of([counted(stop=90, k=4), counted("eu", shed=10, k=0)])
    assert (two.requests_per_s, two.in_time_share, two.num_speculative_tokens) == (50.0, 0.9, (0, 4))
    idle = figures_of([Reading(1.0)])
    assert (idle.requests_per_s, idle.in_time_share, idle.num_speculative_tokens) == (0.0, None, None)


STOPPED, USAGE = ("completion_requests_total", frozenset({("outcome", "stop")})), ("completion_kv_usage", frozenset())


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (Reading(3.0, {STOPPED: 5.0}), Reading(5.0, {STOPPED: 20.0}), Reading(2.0, {STOPPED: 15.0})),
        (Reading(500.0, {STOPPED: 9.0}), Reading(1.0, {STOPPED: 12.0}), Reading(1.0, {STOPPED: 12.0})),
        (Reading(3.0, {STOPPED: 50.0}), Reading(5.0, {STOPPED: 20.0}), Reading(5.0, {STOPPED: 20.0})),
        (Reading(3.0, {USAGE: 0.75}), Reading(5.0, {USAGE: 0.25}), Reading(2.0, {USAGE: 0.25})),
    ],
    ids=["runs on", "restarted", "restarted, up for longer", "a gauge is that of now"],
)
def test_a_server_that_has_restarted_began_at_0(before: Reading, now: Reading, expected: Reading) -> None:
    assert now.since(before) == expected


def state(name: str = "a:1", **fields: object) -> ServerState:
    status = admin_pb2.GetStatusResponse(queued_requests=2, running_requests=3, slots=8)
    status.MergeFrom(admin_pb2.GetStatusResponse(engine_state=admin_pb2.ENGINE_STATE_READY, **fields))
    return ServerState(name, "SERVING", status, counted(stop=57, shed=3, drafted=10, accepted=7))


def shown(*states: ServerState, width: int = 200) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(page(states, 2.0))
    return capture.get()


def row(text: str, name: str) -> str:
    return next(" ".join(line.split()) for line in text.splitlines() if name in line.split())


def test_a_row_has_the_figures_of_its_server_also_at_80_columns() -> None:
    text = shown(state(region="us-east"))
    assert row(text, "a:1") == "us-east a:1 serving 30.0 95.0% · · 2 3/8 5% 100% · 2 70%"
    assert "all" not in text.split()
    second = shown(replace(state(), counted=None))
    assert row(second, "a:1") == "a:1 serving · · · · 2 3/8 · · · · ·"
    narrow = shown(state("completion-server-7.us-east.example.org:50052"), width=80)
    assert all(each in narrow for each in ("30.0", "95.0%", "3/8", "70%", "accept"))
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 80


def test_several_servers_have_a_row_of_all_together_and_those_that_do_not_serve_come_first() -> None:
    draining = replace(state("c:3", draining=True), health="NOT_SERVING")
    text = shown(state(), draining, ServerState("b:2", problem="No server answers at b:2."))
    assert row(text, "all").startswith("all 1/3 serving 60.0 ")
    assert row(text, "c:3").startswith("c:3 draining, engine ready ")
    assert row(text, "b:2") == " ".join(("b:2", "down", *"···········"))
    assert "No server answers at b:2." in text
    assert text.index("c:3") < text.index("a:1")


@pytest.fixture
async def servers() -> AsyncIterator[list[RunningServer]]:
    """Yield two real servers in two regions."""
    one, two = (
        make_config(f"server.region={region}", "admission.user_requests_per_s=0") for region in ("us-east", "eu-west")
    )
    async with (
        run_server(one, lambda: ScriptedEngine(letters, TIMES)) as first,
        run_server(two, lambda: ScriptedEngine(letters, TIMES)) as second,
    ):
        yield [first, second]


async def test_one_interval_of_real_servers_and_one_that_is_down(servers: list[RunningServer], run: Run) -> None:
    async def ask_on() -> None:
        for number in range(1_000_000):
            await ask(servers[0].stub, request(f"x{number} = ", sequence=number, max_tokens=4))

    asking = asyncio.create_task(ask_on())
    addresses = ",".join((*(each.ready.admin_address for each in servers), "127.0.0.1:1"))
    result = await run(top, "--admin", addresses, "--once", "--json", "--interval", "0.5")
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    assert result.exit_code == 1  # one is down
    answer = json.loads(result.stdout)
    first, second, third = answer["servers"]
    assert [each["region"] for each in (first, second)] == ["us-east", "eu-west"]
    assert (first["health"], third["health"], third["figures"]) == ("SERVING", None, None)
    assert "No server answers at 127.0.0.1:1" in third["problem"]
    figures = first["figures"]
    assert figures["requests_per_s"] == answer["all"]["figures"]["requests_per_s"] > 0
    assert 0 < figures["ttft_ms"]["p50"] <= figures["ttft_ms"]["p95"]
    assert (second["figures"]["requests_per_s"], second["figures"]["ttft_ms"]["p50"]) == (0.0, None)
    shown = await run(top, "--admin", servers[0].ready.admin_address, "--once", "--interval", "0.2")
    assert shown.exit_code == 0
    assert all(part in shown.stdout for part in ("us-east", "serving", "accept"))


@pytest.mark.parametrize(
    ("metrics", "why"),
    [(None, "Method not found!"), ("completion_requests_total not-a-number\n", "could not convert")],
    ids=["an older server", "no text format"],
)
async def test_a_server_without_metrics_shows_its_status(serve: Serve, run: Run, metrics: str | None, why: str) -> None:
    fake = await serve(FakeServer(status=READY, metrics=metrics), SERVING)
    result = await run(top, "--admin", fake.address, "--once", "--interval", "0.2")
    assert result.exit_code == 0
    assert f"{fake.address}, version 0.0.9: its metrics can't be read: {why}" in result.stdout
    assert "0/8" in result.stdout


async def test_a_refused_token_is_fetched_again_for_the_next_poll(serve: Serve) -> None:
    fake = await serve(FakeServer(status=READY, metrics="", failure=Failure(StatusCode.UNAUTHENTICATED, "revoked")))
    tokens = iter(("old", "new"))

    class Source:
        """A source whose token changes."""

        where = "a source"

        def state(self) -> object:
            return None

        def fetch(self) -> str:
            return next(tokens)

    server = PolledServer(Endpoint(fake.address, token=Token(Source())), 5.0)
    with server.channel:
        refused = await asyncio.to_thread(server.poll)
        assert "the server refused the token of a source: revoked" in refused.problem
        fake.failure = None
        assert (await asyncio.to_thread(server.poll)).problem == ""
    assert [each["authorization"] for each in fake.metadata] == ["Bearer old", "Bearer new"]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((), "standard output is no terminal: give --once or --json"),
        (("--once", "--interval", "0"), "0.2<=x<=300"),
        (("--once", "--admin", "a:1,a:1"), "a:1 is there twice"),
    ],
)
async def test_what_can_not_be_shown_is_refused(run: Run, arguments: tuple[str, ...], fault: str) -> None:
    result = await run(top, *arguments)
    assert result.exit_code == 2
    assert fault in result.stderr


async def test_the_live_view_goes_on_until_it_is_interrupted(serve: Serve) -> None:
    fake = await serve(FakeServer(status=READY, metrics=""), SERVING)
    own, other = pty.openpty()
    os.set_blocking(own, False)
    output = ""
    command = (sys.executable, "-m", "completion_server", "top", "--admin", fake.address, "--interval", "0.2")
    env = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "30"}  # rich takes the terminal's size from them
    process = await asyncio.create_subprocess_exec(*command, stdin=other, stdout=other, stderr=other, env=env)
    os.close(other)

    def is_written(text: str) -> bool:
        nonlocal output
        with suppress(OSError):  # nothing was written, or the process has ended
            output += os.read(own, 1 << 16).decode(errors="replace")
        return text in output

    try:
        await eventually(lambda: is_written("0/8"))
        fake.status = admin_pb2.GetStatusResponse(engine_state=admin_pb2.ENGINE_STATE_READY, slots=9)
        await eventually(lambda: is_written("0/9"))  # a later frame
        process.send_signal(signal.SIGINT)
        await eventually(lambda: is_written("\x1b[?1049l"))  # the other screen is back
        assert await asyncio.wait_for(process.wait(), 30) == 130
        assert not re.search("Traceback", output)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(own)
