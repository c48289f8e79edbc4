"""The command probe: what an editor would have seen, once in words, and again and again as metrics."""

import asyncio
import math
import re
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import grpc
import pytest
from client_fakes import Failure, FakeServer, Run, Serve, end
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from completion.v1 import completion_pb2 as pb
from completion_client import Endpoint
from completion_server.client.probe_command import ProbeMetrics, Seen, ask, probe
from tests.support.certificates import DAY_S, make_identity_in

_PATIENCE_S = 30.0
NO_TEXT = FakeServer(answer=(end(pb.FINISH_REASON_STOP),))
SHED = FakeServer(answer=(end(pb.FINISH_REASON_SHED, shed_reason=pb.SHED_REASON_OVERLOAD),))
REFUSING = FakeServer(answer=(), failure=Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room"))
SILENT = FakeServer(answer=(), is_hanging=True)


async def seen_of(fake: FakeServer, timeout_s: float = _PATIENCE_S) -> Seen:
    return await ask((Endpoint(fake.address),), "probe-0", 7, timeout_s)


async def test_an_answer_has_a_latency_and_the_server_that_gave_it(serve: Serve) -> None:
    fake = await serve()
    seen = await seen_of(fake)
    assert (seen.result, seen.address, seen.why) == ("answered", fake.address, "")
    assert seen.ttft_s is not None
    assert 0 < seen.ttft_s < _PATIENCE_S
    (request,) = fake.requests
    assert request.without_completion_cache
    assert "median_7(" in request.prefix, "texts differ, so that no cache of the engine holds all of one"
    assert fake.metadata[0]["x-user-id"] == "probe-0"


@pytest.mark.parametrize(
    ("fake", "result", "why"),
    [
        (NO_TEXT, "answered", ""),
        (SHED, "shed", "overload"),
        (REFUSING, "failed", "RESOURCE_EXHAUSTED: no room"),
    ],
    ids=["no text", "shed", "refused"],
)
async def test_an_end_without_text_is_told_from_a_failure(
    serve: Serve, fake: FakeServer, result: str, why: str
) -> None:
    seen = await seen_of(await serve(fake))
    assert (seen.result, seen.why) == (result, why)
    assert (seen.ttft_s is not None) == (result == "answered")


async def test_a_server_that_says_nothing_fails_when_the_time_is_over(serve: Serve) -> None:
    seen = await seen_of(await serve(SILENT), timeout_s=0.5)
    assert seen.result == "failed"
    assert seen.ttft_s is None


async def test_a_server_that_is_away_fails() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        seen = await ask((Endpoint(f"127.0.0.1:{nobody.getsockname()[1]}"),), "probe-0", 0, 1.0)
    assert (seen.result, seen.address) == ("failed", "")
    assert seen.why


async def test_once_tells_of_each_server_and_of_the_nearest(serve: Serve, run: Run) -> None:
    good, bad = await serve(), await serve(REFUSING)
    result = await run(probe, "--once", "--server", f"{good.address},{bad.address}", "--timeout-ms", "20000")
    first, second, nearest = result.stdout.splitlines()
    assert re.fullmatch(rf"{good.address}  answered  TTFT \d+ ms", first)
    assert second == f"{bad.address}  failed  RESOURCE_EXHAUSTED: no room"
    assert nearest.startswith("nearest  ")
    assert result.exit_code == 1


async def test_once_ends_well_if_all_answer(serve: Serve, run: Run) -> None:
    fake = await serve()
    result = await run(probe, "--once", "--server", fake.address)
    assert result.exit_code == 0, result.output


async def test_a_name_that_can_t_be_sent_and_an_address_that_can_t_be_used_are_refused(run: Run) -> None:
    result = await run(probe, "--once", "--user", "Zoë")
    assert (result.exit_code, "--user" in result.stderr) == (2, True)
    result = await run(probe, "--metrics-listen", "127.0.0.1:http")
    assert (result.exit_code, "--metrics-listen" in result.stderr) == (2, True)


def test_the_server_that_the_nearest_was_is_counted_and_all_results_exist_from_the_start() -> None:
    registry = CollectorRegistry()
    metrics = ProbeMetrics(registry, ("a:1", "b:1", "nearest"))
    requests = "completion_probe_requests_total"
    assert registry.get_sample_value(requests, {"server": "b:1", "result": "failed"}) == 0
    metrics.add("a:1", Seen("answered", 0.12, "a:1"))
    metrics.add("nearest", Seen("answered", 0.03, "b:1"))
    metrics.add("b:1", Seen("failed", why="away"))
    assert registry.get_sample_value(requests, {"server": "b:1", "result": "failed"}) == 1
    assert registry.get_sample_value("completion_probe_ttft_seconds_count", {"server": "a:1"}) == 1
    assert registry.get_sample_value("completion_probe_ttft_seconds_count", {"server": "b:1"}) == 0
    assert registry.get_sample_value("completion_probe_reached_total", {"server": "b:1"}) == 1
    assert registry.get_sample_value("completion_probe_reached_total", {"server": "a:1"}) is None


def test_the_end_of_the_probe_s_own_certificate_is_shown_also_of_a_renewed_one(tmp_path: Path) -> None:
    registry, name = CollectorRegistry(), "completion_probe_certificate_not_after_timestamp_seconds"
    old, new = (make_identity_in(tmp_path, name, lives_s=days * DAY_S) for name, days in (("old", 3), ("new", 90)))
    ProbeMetrics(registry, ("a:1",), old.certificate)
    assert registry.get_sample_value(name) == old.expires_at
    renewed_until = new.expires_at
    new.certificate.replace(old.certificate)
    assert registry.get_sample_value(name) == renewed_until
    old.certificate.write_text("no PEM")
    assert math.isnan(registry.get_sample_value(name) or 0)


async def test_the_process_asks_until_it_is_told_to_end(serve: Serve) -> None:
    fake = await serve()
    options = ["--server", fake.address, "--interval", "1", "--metrics-listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "completion_server", "probe", *options, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        line = (await asyncio.wait_for(process.stderr.readline(), _PATIENCE_S)).decode()
        found = re.fullmatch(rf"probing {fake.address}; metrics at (http://127.0.0.1:\d+/metrics)\n", line)
        assert found, line
        async with asyncio.timeout(_PATIENCE_S):
            while await num_answered(found[1]) < 2:
                await asyncio.sleep(0.1)
        assert {each["x-user-id"] for each in fake.metadata} >= {"probe-0", "probe-1"}
    finally:
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), _PATIENCE_S)
    assert status == 0


async def num_answered(page: str) -> float:
    """Return the answered requests that a page counts."""

    def read() -> str:
        with urllib.request.urlopen(page, timeout=10) as reply:
            text: str = reply.read().decode()
            return text

    families = text_string_to_metric_families(await asyncio.to_thread(read))
    samples = (sample for family in families for sample in family.samples)
    return sum(
        each.value for each in samples if each.name.endswith("requests_total") and each.labels["result"] == "answered"
    )
