"""Single requests and sessions of the client library, against the real server with a scripted engine."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanContext, get_current_span, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from completion.v1 import completion_pb2 as pb
from completion_client import (
    CompletionClient,
    ConnectionLostError,
    DeadlineExceededError,
    Endpoint,
    EndpointError,
    InvalidArgumentError,
    ResourceExhaustedError,
    Session,
    UnavailableError,
    make_traceparent,
)
from completion_client.request_fields import Numbering
from completion_client.session_settings import Backoff, SessionSettings
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from loadtest.targets import ClientSettings
from loadtest.targets.editor import RequestFactory
from tests.support.examples import examples
from tests.support.regions import ENDLESS_REQUEST, script
from tests.support.server import RunningServer, endless_config, endless_engine, eventually, run_server

REQUEST = pb.CompleteRequest(prefix="x = ")


@pytest_asyncio.fixture
async def engine() -> ScriptedEngine:
    return endless_engine(script, ServiceTimes(decode_base_s=0.005))


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[RunningServer]:
    async with run_server(endless_config(), lambda: engine) as running:
        yield running


@pytest_asyncio.fixture
async def client(server: RunningServer) -> AsyncIterator[CompletionClient]:
    async with CompletionClient(server.ready.address, user="ada") as opened:
        yield opened


async def test_calls_return_text_and_end_and_are_numbered(client: CompletionClient) -> None:
    """The server ends a request that is older than the session's last one as superseded."""
    for sequence in (1, 2):
        pieces: list[str] = []
        completion = await client.complete(REQUEST, on_text=pieces.append)
        assert completion.text == "".join(pieces) == "alpha beta"
        assert (completion.finish_reason, completion.error, completion.sequence) == ("stop", None, sequence)
        assert completion.end is not None
        assert completion.end.usage.completion_tokens == 3
        assert completion.ttft_ms is not None
        assert 0 < completion.ttft_ms <= completion.total_ms


async def test_a_refused_request_names_its_fields(client: CompletionClient) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await client.complete(pb.CompleteRequest(prefix="x = ", temperature=-1.0))
    assert [each.field for each in caught.value.violations] == ["temperature"]


@pytest.mark.parametrize("as_status", [False, True])
async def test_a_shed_request_names_its_limit(engine: ScriptedEngine, as_status: bool) -> None:
    limits = ("admission.user_requests_per_s=0.01",)
    config = endless_config(*limits, f"shed.as_status={str(as_status).lower()}")
    async with run_server(config, lambda: engine) as server, CompletionClient(server.ready.address) as client:
        await client.complete(REQUEST)
        if as_status:
            with pytest.raises(ResourceExhaustedError) as caught:
                await client.complete(REQUEST)
            assert caught.value.reason == "RATE_LIMITED"
            limit = caught.value.limit
        else:
            limit = (await client.complete(REQUEST)).limit
    assert limit == ("admission.user_requests_per_s", 0.01)


async def test_a_session_s_error_has_the_reason_of_a_call_s(engine: ScriptedEngine) -> None:
    config = endless_config("limits.max_requests_per_session=1", "scheduling.supersede=false")
    async with (
        run_server(config, lambda: engine) as server,
        CompletionClient(server.ready.address) as client,
        client.session() as session,
    ):
        session.submit_nowait(ENDLESS_REQUEST)
        with pytest.raises(ResourceExhaustedError) as caught:
            await session.complete(REQUEST)
    assert (caught.value.reason, caught.value.limit) == ("TOO_MANY_OPEN", ("limits.max_requests_per_session", 1))


@pytest.mark.parametrize("in_session", [False, True], ids=["call", "session"])
async def test_a_timeout_and_a_cancelled_wait_free_the_engine(
    client: CompletionClient, engine: ScriptedEngine, in_session: bool
) -> None:
    async with client.session() as session:
        ask = session.complete if in_session else client.complete
        with pytest.raises(DeadlineExceededError):
            await ask(ENDLESS_REQUEST, timeout_s=0.1)
        await eventually(lambda: engine.stats().num_running == 0)
        asking = asyncio.create_task(ask(ENDLESS_REQUEST))
        await eventually(lambda: engine.stats().num_running == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: engine.stats().num_running == 0)
        assert (await ask(REQUEST)).text == "alpha beta"


async def test_a_server_that_is_away_or_does_not_answer() -> None:
    async with CompletionClient("127.0.0.1:1", connect_timeout_s=0.1) as client:
        with pytest.raises(UnavailableError):
            await client.complete(REQUEST, timeout_s=5.0)
        with pytest.raises(ConnectionLostError, match=r"no connection to 127\.0\.0\.1:1"):
            await client.connect()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with CompletionClient(f"127.0.0.1:{silent.getsockname()[1]}") as client:
            with pytest.raises(DeadlineExceededError, match="no connection to"):
                await client.complete(REQUEST, timeout_s=0.1)


async def test_names_that_can_not_be_sent_and_a_key_alone_are_refused() -> None:
    with pytest.raises(EndpointError, match="user: only printable ASCII can be sent"):
        CompletionClient("127.0.0.1:1", user="zoë")
    with pytest.raises(EndpointError, match="certificate"):
        Endpoint("localhost:1", key=Path("key.pem"))


async def test_a_request_of_a_session_is_cancelled_or_fails_with_the_session(
    client: CompletionClient, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.session() as session:
        pending = session.submit_nowait(ENDLESS_REQUEST)
        assert await anext(aiter(pending))
        session.report_nowait(pb.ReportFeedbackRequest(sequence=pending.sequence, kind=pb.FEEDBACK_KIND_SHOWN))
        await eventually(lambda: "sequence 1: feedback.sequence: must be that of an answer" in caplog.text)
        assert not pending.is_done, "a refusal ends no request"
        pending.cancel_nowait()
        completion = await pending.result()
        assert (completion.finish_reason, completion.text[:3]) == ("cancelled", " w0")
        pending.cancel_nowait()
        pending = session.submit_nowait(ENDLESS_REQUEST)
        assert await anext(aiter(pending))
    with pytest.raises(ConnectionLostError, match="closed"):
        await pending.result()
    await eventually(lambda: engine.stats().num_running == 0)


async def test_the_server_knows_the_timeout_of_a_request_of_a_session() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.timeouts_ms: list[int | None] = []

        def send_nowait(self, request: pb.CompleteRequest, *_: object) -> None:
            self.timeouts_ms.append(request.timeout_ms if request.HasField("timeout_ms") else None)

    stream: Any = Recorder()
    session = Session(stream, "s")
    for timeout_s in (None, 0.2501, 1e-9, 1e9):
        for own in ({}, {"timeout_ms": 100}):
            pending = session.submit_nowait(pb.CompleteRequest(**own), timeout_s=timeout_s)
            pending.on_end(pb.End(finish_reason=pb.FINISH_REASON_STOP))
    assert stream.timeouts_ms == [None, 100, 251, 100, 1, 1, 86_400_000, 100]


def parent_of(traceparent: str) -> SpanContext:
    context = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context())
    return get_current_span(context).get_span_context()


def test_the_current_span_of_opentelemetry_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("keystroke")
    with use_span(span):
        parent = parent_of(Numbering().numbered(pb.CompleteRequest()).traceparent)
        assert Numbering().numbered(pb.CompleteRequest(traceparent="mine")).traceparent == "mine"
    context = span.get_span_context()
    assert (parent.trace_id, parent.span_id) == (context.trace_id, context.span_id)
    assert parent.trace_flags.sampled
    assert Numbering().numbered(pb.CompleteRequest()).traceparent == ""
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    with use_span(span):
        assert Numbering().numbered(pb.CompleteRequest()).traceparent == "", "a program without it needs none"


@pytest.mark.parametrize("is_sampled", [True, False])
def test_a_new_trace_is_valid(is_sampled: bool) -> None:
    parent = parent_of(make_traceparent(is_sampled=is_sampled))
    assert parent.is_valid
    assert parent.trace_flags.sampled is is_sampled


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.25, 200, 300), (1.0, 1000, 1000)])
def test_the_load_tester_traces_its_share_of_the_requests(share: float, least: int, most: int) -> None:
    factory = RequestFactory(None, "run-1", "u", ClientSettings(traced_share=share))  # type: ignore[arg-type]
    traced = [parent_of(each) for each in map(factory.traceparent, range(1000)) if each]
    assert least <= len({parent.trace_id for parent in traced}) == len(traced) <= most
    assert all(parent.is_valid and parent.trace_flags.sampled for parent in traced)


@given(st.text(), st.integers(1, 20))
@settings(max_examples=examples(1))
def test_waits_stay_below_a_bound_that_doubles(seed: str, count: int) -> None:
    settings = SessionSettings(backoff_min_s=0.1, backoff_max_s=5.0, backoff_seed=seed)
    backoff, same = Backoff(settings), Backoff(settings)
    waits_s = [backoff.next_s() for _ in range(count)]
    assert all(0 <= wait_s <= min(5.0, 0.1 * 2**place) for place, wait_s in enumerate(waits_s))
    assert waits_s == [same.next_s() for _ in range(count)], "the same seed, the same waits"
    backoff.reset()
    assert backoff.next_s() <= 0.1
