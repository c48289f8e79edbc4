"""Traces from end to end: whole servers, and a real receiver of OTLP."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion_server.app.checks import check
from completion_server.core.errors import ConfigError
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.certificates import make_identity_in
from tests.support.otlp import ReceivedSpan, Receiver, grpc_receiver, http_receiver
from tests.support.server import RunningServer, ask, eventually, make_config, next_event, request, run_server

TIMES = ServiceTimes(prefill_base_s=0.02, decode_base_s=0.01)
WORDS = ("alpha", " beta", " gamma", " delta")
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = (("traceparent", f"00-{TRACE}-{SPAN}-01"), ("tracestate", "vendor=1"))
STAGES = ["receive", "admission", "queue", "tokenise", "prefill", "decode", "stream"]
QUIET = ("engine.warm_up=false", "engine.heartbeat_s=0", "shed.budget_ms=60000")
"""Nothing misses its budget on a slow machine."""
CLOCK_S = 2e-6
"""Times of spans are whole nanoseconds in floats of seconds since 1970."""
SERVER_KIND = 2
ERROR = 2


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK exports every 50 ms, and gives a collector 2 s."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")


def make_engine(words: Sequence[str] = WORDS, times: ServiceTimes = TIMES) -> ScriptedEngine:
    return ScriptedEngine(lambda _request: words, times)


@asynccontextmanager
async def traced_server(
    receiver: Receiver, *overrides: str, engine: Callable[[], Any] = make_engine
) -> AsyncIterator[RunningServer]:
    """Run a server that exports to the receiver."""
    endpoint = (f"traces.endpoint={receiver.address}", "traces.sample_ratio=1")
    async with run_server(make_config(*QUIET, *endpoint, *overrides), engine) as server:
        yield server


async def roots(receiver: Receiver, count: int) -> list[ReceivedSpan]:
    """Wait for the spans of so many requests and return them in the order of their beginnings."""
    await eventually(lambda: len(receiver.roots()) == count)
    return receiver.roots()


def user(name: str) -> tuple[tuple[str, str], ...]:
    return (("x-user-id", name),)


def stage_seconds(server: RunningServer) -> dict[str, float]:
    """The sums of the histogram of stages."""
    return {
        sample.labels["stage"]: sample.value
        for family in server.registry.collect()
        for sample in family.samples
        if sample.name == "completion_stage_seconds_sum"
    }


def assert_agrees(server: RunningServer, receiver: Receiver) -> None:
    """Check that the spans of completed stages take as long as the metrics say, over all requests."""
    sums = stage_seconds(server)
    completed = [span for span in receiver.spans if not span.attributes.get("completion.unfinished")]
    for stage in ("receive", "admission", "queue", "tokenise", "prefill", "stream"):
        spans = [span.seconds for span in completed if span.name == stage]
        assert sum(spans) == pytest.approx(sums[stage], abs=CLOCK_S * (1 + len(spans))), stage


ATTRIBUTES = {
    "rpc.system.name": "grpc",
    "rpc.method": "completion.v1.CompletionService/Complete",
    "rpc.response.status_code": "OK",
    "gen_ai.operation.name": "text_completion",
    "gen_ai.request.max_tokens": 9,
    "gen_ai.response.finish_reasons": ["stop"],
    "completion.outcome": "stop",
    "completion.trigger": "automatic",
    "completion.mode": "single_line",
    "completion.generation": "own",
    "completion.missed_budget": False,
    "completion.sampled": "head",
}


async def test_an_answered_request_has_one_span_for_each_stage_within_its_callers_trace() -> None:
    with grpc_receiver() as receiver:
        async with traced_server(receiver, "server.region=us-east", "redis.replica_id=one") as server:
            answer = await ask(server.stub, request("x = ", max_tokens=9), metadata=(*user("u"), *SAMPLED))
            (root,) = await roots(receiver, 1)
            stages = receiver.children(root)
            assert list(stages) == STAGES
            assert (root.trace_id, root.parent_id, root.state) == (TRACE, SPAN, "vendor=1")
            assert (root.name, root.kind, root.status) == ("completion.v1.CompletionService/Complete", SERVER_KIND, 0)
            assert_agrees(server, receiver)
            times = [time for span in stages.values() for time in (span.begin_s, span.end_s)]
            assert times == sorted(times), "each stage begins where the one before it ends"
            assert (root.begin_s, root.end_s) == (times[0], times[-1])
            seconds, begun_s = stage_seconds(server), stages["admission"].begin_s
            assert stages["stream"].begin_s - begun_s == pytest.approx(seconds["total"], abs=2 * CLOCK_S)
            assert answer.end is not None
            usage = answer.end.usage
            num_decoded = usage.completion_tokens - root.attributes["completion.tokens_at_first_output"]
            assert stages["decode"].seconds / num_decoded == pytest.approx(seconds["decode_token"], abs=2 * CLOCK_S)
            expected = ATTRIBUTES | {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
            }
            assert {key: root.attributes.get(key) for key in expected} == expected
            ttft_s = root.attributes["gen_ai.response.time_to_first_chunk"]
            assert ttft_s == pytest.approx(stages["decode"].begin_s - begun_s, abs=2 * CLOCK_S)
            keys = ("service.name", "service.instance.id", "cloud.region")
            assert [root.resource.get(key) for key in keys] == ["completion-server", "one", "us-east"]


async def test_requests_of_a_stream_are_in_traces_of_their_own() -> None:
    other = "a" * 32
    with grpc_receiver() as receiver:
        async with traced_server(receiver) as server:
            stream = server.stub.Session(metadata=SAMPLED)
            for sequence, traceparent in ((1, f"00-{other}-{SPAN}-01"), (2, "")):
                message = request("x = ", sequence=sequence, traceparent=traceparent)
                await stream.write(pb.SessionRequest(complete=message))
                while (await next_event(stream)).WhichOneof("event") != "end":
                    pass
            await stream.done_writing()
            first, second = await roots(receiver, 2)
            assert (first.trace_id, first.parent_id) == (other, SPAN)
            assert second.trace_id not in {TRACE, other}
            assert second.parent_id == ""
            assert first.name == "completion.v1.CompletionService/Session"
            assert "rpc.response.status_code" not in first.attributes
            assert list(receiver.children(first)) == list(receiver.children(second)) == STAGES
            assert_agrees(server, receiver)


async def test_a_request_that_ends_early_has_the_stages_that_it_reached() -> None:
    """The engine takes 10 s: one request runs, one waits and is superseded, one is shed, one cancelled, one late."""
    with grpc_receiver() as receiver:
        slow = ServiceTimes(prefill_base_s=10.0)
        limits = ("scheduling.max_slots=1", "scheduling.min_slots=1", "scheduling.max_queued=1")
        async with traced_server(receiver, *limits, engine=lambda: make_engine(times=slow)) as server:
            running = asyncio.create_task(ask(server.stub, request("a = "), 4.0, user("runs")))
            await eventually(lambda: server.count("completion_running_requests") == 1)
            waiting = asyncio.create_task(ask(server.stub, request("b = "), metadata=user("waits")))
            await eventually(lambda: server.count("completion_queued_requests") == 1)
            prefetched = request("c = ", trigger=pb.TRIGGER_PREFETCH)
            shed = await ask(server.stub, prefetched, metadata=user("third"))
            newer = server.stub.Complete(request("bb = ", sequence=2), metadata=user("waits"))
            reading = asyncio.create_task(newer.read())
            assert (await waiting).reason == "superseded"
            newer.cancel()
            assert (await running).code is grpc.StatusCode.DEADLINE_EXCEEDED
            await asyncio.gather(reading, return_exceptions=True)
            assert shed.reason == "shed"
            by_outcome = {span.attributes["completion.outcome"]: span for span in await roots(receiver, 4)}
            reached = {outcome: list(receiver.children(span)) for outcome, span in by_outcome.items()}
            first = ["receive", "admission", "queue"]
            assert reached["deadline"] in ([*first, "tokenise", "prefill"], [*first, "tokenise", "prefill", "stream"])
            assert reached["superseded"] == [*first, "stream"]
            assert reached["cancelled"] == first
            assert reached["shed"] == [*first, "stream"]
            assert receiver.children(by_outcome["superseded"])["queue"].attributes == {"completion.unfinished": True}
            assert by_outcome["shed"].attributes["completion.shed_reason"] == "overload"
            assert by_outcome["deadline"].status == ERROR
            assert by_outcome["deadline"].attributes["error.type"] == "DEADLINE_EXCEEDED"
            assert {span.status for outcome, span in by_outcome.items() if outcome != "deadline"} == {0}
            assert_agrees(server, receiver)


async def test_an_answer_from_the_cache_has_no_stages_of_the_engine() -> None:
    with grpc_receiver() as receiver:
        async with traced_server(receiver, "cache.enabled=true") as server:
            for sequence in (1, 2):
                await ask(server.stub, request("x = ", sequence=sequence), metadata=user("u"))
            _, cached = await roots(receiver, 2)
            assert list(receiver.children(cached)) == ["receive", "admission", "stream"]
            assert cached.attributes["completion.cache_level"] == "local"
            assert "completion.generation" not in cached.attributes


async def test_a_request_that_reads_anothers_generation_links_to_its_trace() -> None:
    """One user types along, and another session of the user asks for the same."""
    with grpc_receiver() as receiver:
        engine = make_engine()
        config = ("scheduling.lane=session", "scheduling.max_slots=4")
        async with traced_server(receiver, *config, engine=lambda: engine) as server:
            engine.hang()  # so that the first request is still there when the others come
            first = asyncio.create_task(ask(server.stub, request("x = ", session_id="one"), metadata=user("u")))
            await eventually(lambda: server.count("completion_running_requests") == 1)
            joined = asyncio.create_task(ask(server.stub, request("x = ", session_id="two"), metadata=user("u")))
            await eventually(lambda: server.count("completion_generations_joined_total") == 1)
            along = request("x = al", session_id="one", sequence=2)
            reattaching = asyncio.create_task(ask(server.stub, along, metadata=user("u")))
            await eventually(lambda: server.count("completion_generations_reattached_total") == 1)
            engine.resume()
            reattached = await reattaching
            assert reattached.text == "".join(WORDS).removeprefix("al")
            assert (await first).reason == "superseded"
            assert (await joined).text == "".join(WORDS)
            found = {span.attributes.get("completion.generation"): span for span in await roots(receiver, 3)}
            older = next(span for span in receiver.roots() if span.attributes["completion.outcome"] == "superseded")
            assert older.links == ()
            assert found["joined"].links == found["reattached"].links == (older.trace_id,)
            assert found["joined"].trace_id != older.trace_id
            assert_agrees(server, receiver)


async def test_no_text_and_no_name_is_exported() -> None:
    canaries = [f"canary{name}" for name in ("prefix", "suffix", "uri", "snippet", "session", "user", "tenant", "stop")]
    prefix, suffix, uri, snippet, session, name, tenant, stop = canaries
    message = request(
        prefix, suffix, session_id=session, document_uri=f"file:///{uri}.py", stop=[stop],
        snippets=[pb.ContextSnippet(uri=uri, text=snippet)], language_id="canarylanguage",
    )  # fmt: skip
    with grpc_receiver() as receiver:
        async with traced_server(
            receiver, "limits.max_tokens=64", engine=lambda: make_engine(("canary", "completion"))
        ) as server:
            metadata = (("x-user-id", name), ("x-tenant-id", tenant), *SAMPLED)
            await ask(server.stub, message, metadata=metadata)
            invalid = request(prefix, max_tokens=1000, session_id=session)
            await ask(server.stub, invalid, metadata=metadata)
        assert len(receiver.roots()) == 1
        assert b"canary" not in receiver.raw


async def test_a_collector_that_comes_late_gets_the_spans_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    with grpc_receiver() as first:
        port = int(first.address.rpartition(":")[2])
    async with traced_server(first) as server:
        assert (await ask(server.stub, request("x = "))).reason == "stop"
        await eventually(lambda: "UNAVAILABLE" in caplog.text, 20)
        with grpc_receiver(port=port) as receiver:
            sequence = 2
            while not receiver.spans:
                assert (await ask(server.stub, request("x = ", sequence=sequence))).reason == "stop"
                await asyncio.sleep(0.05)
                sequence += 1


@pytest.mark.full
async def test_a_collector_that_hangs_delays_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "16")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    receiver = Receiver(hangs=threading.Event())
    with grpc_receiver(receiver):
        async with traced_server(receiver) as server:
            for sequence in range(1, 11):
                assert (await ask(server.stub, request("x = ", sequence=sequence))).reason == "stop"
            await eventually(lambda: receiver.exports >= 1)
        assert receiver.spans == []


@pytest.mark.parametrize("protocol", ["grpc", "http"])
async def test_the_last_spans_are_exported_at_the_end(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    with (grpc_receiver if protocol == "grpc" else http_receiver)() as receiver:
        path = "" if protocol == "grpc" else "/v1/traces"
        async with traced_server(receiver, f"traces.endpoint={receiver.address}{path}") as server:
            await ask(server.stub, request("x = "))
            assert receiver.spans == []
        assert len(receiver.spans) == 1 + len(STAGES)


async def test_the_variables_of_opentelemetry_set_tls_and_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = make_identity_in(tmp_path, "collector")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(identity.certificate))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
    with grpc_receiver(credentials=identity.server_credentials()) as receiver:
        async with traced_server(receiver) as server:
            await ask(server.stub, request("x = "))
            await roots(receiver, 1)
    assert receiver.headers["authorization"] == "Bearer secret"


async def test_a_variable_that_opentelemetry_refuses_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match=r"traces\.endpoint: OpenTelemetry refuses a variable .*soon"):
        async with traced_server(Receiver(address="http://127.0.0.1:1")):
            raise AssertionError("it started")


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "completion_server.ops.tracing.tracing", None)
    config = make_config("traces.endpoint=http://127.0.0.1:4317")
    with pytest.raises(ConfigError, match=r"traces.endpoint: needs OpenTelemetry.*completion-server\[traces\]"):
        check(config, {})
