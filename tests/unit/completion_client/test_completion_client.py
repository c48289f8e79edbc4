"""Single requests and sessions of the client library, against the real server with a scripted engine."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio

from completion.v1 import completion_pb2 as pb
from completion_client import (
    CompletionClient,
    ConnectionLostError,
    DeadlineExceededError,
    Endpoint,
    EndpointError,
    InvalidArgumentError,
    UnavailableError,
)
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.server import ENDLESS, RunningServer, endless_config, endless_engine, eventually, run_server

ENDLESS_REQUEST = pb.CompleteRequest(prefix="x = ", mode=pb.MODE_MULTI_LINE, max_tokens=ENDLESS)


def script(request: GenerationRequest) -> Iterable[str]:
    if request.max_tokens == ENDLESS:
        return (f" w{i}" for i in range(ENDLESS))
    return ("alpha", " beta", "\n")


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


async def test_a_request_returns_its_text_and_its_end(client: CompletionClient) -> None:
    pieces: list[str] = []
    completion = await client.complete(pb.CompleteRequest(prefix="x = "), on_text=pieces.append)
    assert completion.text == "".join(pieces) == "alpha beta"
    assert completion.finish_reason == "stop"
    assert completion.error is None
    assert completion.end is not None
    assert completion.end.usage.completion_tokens == 3
    assert completion.ttft_ms is not None
    assert 0 < completion.ttft_ms <= completion.total_ms


async def test_requests_of_a_client_are_numbered(client: CompletionClient) -> None:
    """The server refuses a request that is older than the session's last one as superseded."""
    reasons = [(await client.complete(pb.CompleteRequest(prefix="x = "))).finish_reason for _ in range(3)]
    assert reasons == ["stop"] * 3


async def test_a_refused_request_names_its_fields(client: CompletionClient) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        await client.complete(pb.CompleteRequest(prefix="x = ", temperature=-1.0))
    assert [each.field for each in caught.value.violations] == ["temperature"]


async def test_a_timeout_is_an_error_and_frees_the_engine(client: CompletionClient, engine: ScriptedEngine) -> None:
    with pytest.raises(DeadlineExceededError):
        await client.complete(ENDLESS_REQUEST, timeout_s=0.1)
    await eventually(lambda: engine.stats().num_running == 0)


async def test_a_cancelled_call_frees_the_engine(client: CompletionClient, engine: ScriptedEngine) -> None:
    has_text = asyncio.Event()
    call = asyncio.create_task(client.complete(ENDLESS_REQUEST, on_text=lambda _text: has_text.set()))
    await has_text.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await eventually(lambda: engine.stats().num_running == 0)


async def test_a_server_that_is_away_is_unavailable() -> None:
    async with CompletionClient("127.0.0.1:1", connect_timeout_s=0.1) as client:
        with pytest.raises(UnavailableError):
            await client.complete(pb.CompleteRequest(prefix="x = "), timeout_s=5.0)
        with pytest.raises(ConnectionLostError, match=r"no connection to 127\.0\.0\.1:1"):
            await client.connect()
        with pytest.raises(ConnectionLostError):
            async with client.session():
                pass


async def test_a_user_that_can_not_be_sent_is_refused() -> None:
    with pytest.raises(EndpointError, match="user: only printable ASCII can be sent"):
        CompletionClient("127.0.0.1:1", user="zoë")


async def test_a_key_needs_its_certificate() -> None:
    with pytest.raises(EndpointError, match="certificate"):
        Endpoint("localhost:1", key=Path("key.pem"))


async def test_a_session_answers_requests_one_after_another(client: CompletionClient) -> None:
    async with client.session("editor") as session:
        assert session.is_connected
        texts = [(await session.complete(pb.CompleteRequest(prefix="x = "))).text for _ in range(3)]
    assert texts == ["alpha beta"] * 3


async def test_a_newer_request_of_a_session_supersedes_the_older(client: CompletionClient) -> None:
    async with client.session() as session:
        older = session.submit_nowait(ENDLESS_REQUEST)
        assert await anext(aiter(older))
        newer = await session.complete(pb.CompleteRequest(prefix="y = "))
        assert (await older.result()).finish_reason == "superseded"
    assert newer.text == "alpha beta"


async def test_a_request_of_a_session_can_be_cancelled(client: CompletionClient) -> None:
    async with client.session() as session:
        pending = session.submit_nowait(ENDLESS_REQUEST)
        assert await anext(aiter(pending))
        pending.cancel_nowait()
        completion = await pending.result()
        assert completion.finish_reason == "cancelled"
        assert completion.text.startswith(" w0")
        assert pending.is_done
        pending.cancel_nowait()


async def test_iteration_yields_the_whole_text(client: CompletionClient) -> None:
    async with client.session() as session:
        pending = session.submit_nowait(pb.CompleteRequest(prefix="x = "))
        assert "".join([text async for text in pending]) == "alpha beta"
        assert (await pending.result()).text == "alpha beta"


async def test_a_timeout_ends_a_request_of_a_session(client: CompletionClient, engine: ScriptedEngine) -> None:
    async with client.session() as session:
        with pytest.raises(DeadlineExceededError):
            await session.complete(ENDLESS_REQUEST, timeout_s=0.1)
        await eventually(lambda: engine.stats().num_running == 0)
        assert (await session.complete(pb.CompleteRequest(prefix="x = "))).text == "alpha beta"


async def test_a_cancelled_wait_cancels_the_request(client: CompletionClient, engine: ScriptedEngine) -> None:
    async with client.session() as session:
        waiting = asyncio.create_task(session.complete(ENDLESS_REQUEST))
        await eventually(lambda: engine.stats().num_running == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: engine.stats().num_running == 0)


async def test_a_closed_session_fails_its_open_requests(client: CompletionClient, engine: ScriptedEngine) -> None:
    async with client.session() as session:
        pending = session.submit_nowait(ENDLESS_REQUEST)
        assert await anext(aiter(pending))
    with pytest.raises(ConnectionLostError, match="closed"):
        await pending.result()
    await eventually(lambda: engine.stats().num_running == 0)


async def test_an_invalid_request_ends_that_request_alone(client: CompletionClient) -> None:
    async with client.session() as session:
        with pytest.raises(InvalidArgumentError, match="temperature"):
            await session.complete(pb.CompleteRequest(prefix="x = ", temperature=-1.0))
        assert (await session.complete(pb.CompleteRequest(prefix="x = "))).text == "alpha beta"


async def test_feedback_goes_on_the_session_s_stream(client: CompletionClient, server: RunningServer) -> None:
    async with client.session() as session:
        pending = session.submit_nowait(pb.CompleteRequest(prefix="x = "))
        await pending.result()
        session.report_nowait(pb.ReportFeedbackRequest(sequence=pending.sequence, kind=pb.FEEDBACK_KIND_SHOWN))
        await eventually(lambda: server.count("completion_feedback_total", kind="shown") == 1)
