"""The command probe: what an editor would have seen, once in words, and again and again as metrics."""

import asyncio
import math
import re
import signal
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
REFUSING = FakeServer(answer=(), failure=Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room"))


@pytest.mark.parametrize(
    ("fake", "timeout_s", "result", "why"),
    [
        (FakeServer(), _PATIENCE_S, "answered", ""),
        (FakeServer(answer=(end(pb.FINISH_REASON_STOP),)), _PATIENCE_S, "answered", ""),
        (FakeServer(answer=(end(pb.FINISH_REASON_SHED, shed_reason=1),)), _PATIENCE_S, "shed", "overload"),
        (REFUSING, _PATIENCE_S, "failed", "RESOURCE_EXHAUSTED: no room"),
        (FakeServer(answer=(), is_hanging=True), 0.5, "failed", ""),
        (None, 1.0, "failed", "No server answers at 127.0.0.1:1"),
    ],
    ids=["answered", "no text", "shed", "refused", "silent", "away"],
)
async def test_an_end_without_text_is_told_from_a_failure(
    serve: Serve, fake: FakeServer | None, timeout_s: float, result: str, why: str
) -> None:
    address = (await serve(fake)).address if fake else "127.0.0.1:1"
    seen = await ask((Endpoint(address),), "probe-0", 7, timeout_s)
    assert (seen.result, why in seen.why, seen.why != "") == (result, True, result != "answered")
    assert (seen.ttft_s is not None and 0 < seen.ttft_s < _PATIENCE_S) == (result == "answered")
    if result == "answered":
        assert fake is not None
        assert seen.address == fake.address
        (request,) = fake.requests
        assert request.without_completion_cache
        assert "median_7(" in request.prefix, "texts differ, so that no cache of the engine holds all of one"
        assert fake.metadata[0]["x-user-id"] == "probe-0"


async def test_once_tells_of_each_server_and_of_the_nearest(serve: Serve, run: Run) -> None:
    good, bad = await serve(), await serve(REFUSING)
    result = await run(probe, "--once", "--server", f"{good.address},{bad.address}", "--timeout-ms", "20000")
    first, second, nearest = result.stdout.splitlines()
    assert re.fullmatch(rf"{good.address}  answered  TTFT \d+ ms", first)
    assert second == f"{bad.address}  failed  RESOURCE_EXHAUSTED: no room"
    assert nearest.startswith("nearest  ")
    assert result.exit_code == 1
    assert (await run(probe, "--once", "--server", good.address)).exit_code == 0


@pytest.mark.parametrize(("option", "value"), [("--user", "Zoë"), ("--metrics-listen", "127.0.0.1:http")])
async def test_a_name_or_an_address_that_can_t_be_used_is_refused(run: Run, option: str, value: str) -> None:
    result = await run(probe, option, value)
    assert (result.exit_code, option in result.stderr) == (2, True)


def test_the_server_that_the_nearest_was_is_counted_and_all_results_exist_from_the_start() -> None:
    registry = CollectorRegistry()
    metrics = ProbeMetrics(registry, ("a:1", "b:1", "nearest"))

    def read(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"completion_probe_{name}", labels)

    assert read("requests_total", server="b:1", result="failed") == 0
    metrics.add("a:1", Seen("answered", 0.12, "a:1"))
    metrics.add("nearest", Seen("answered", 0.03, "b:1"))
    metrics.add("b:1", Seen("failed", why="away"))
    assert read("requests_total", server="b:1", result="failed") == 1
    assert [read("ttft_seconds_count", server=server) for server in ("a:1", "b:1")] == [1, 0]
    assert [read("reached_total", server=server) for server in ("a:1", "b:1")] == [None, 1]


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
            while await asyncio.to_thread(num_answered, found[1]) < 2:
                await asyncio.sleep(0.1)
        assert {each["x-user-id"] for each in fake.metadata} >= {"probe-0", "probe-1"}
    finally:
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), _PATIENCE_S)
    assert status == 0


def num_answered(page: str) -> float:
    """Return the answered requests that a page counts."""
    with urllib.request.urlopen(page, timeout=10) as reply:
        families = text_string_to_metric_families(reply.read().decode())
    samples = (sample for family in families for sample in family.samples)
    named = (each for each in samples if each.name == "completion_probe_requests_total")
    return sum(each.value for each in named if each.labels["result"] == "answered")
