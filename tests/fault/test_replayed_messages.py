"""Messages of a session that come twice, late or on another stream: each request is answered once, on its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest_asyncio

from completion.v1 import completion_pb2 as pb
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.server import (
    ENDLESS,
    RunningServer,
    endless_config,
    endless_engine,
    eventually,
    next_event,
    request,
    run_server,
)

SHORT = 3


@pytest_asyncio.fixture
async def engine() -> ScriptedEngine:
    return endless_engine(lambda _request: (f" w{i}" for i in range(ENDLESS)), ServiceTimes(decode_base_s=0.001))


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[RunningServer]:
    config = endless_config("admission.user_requests_per_s=0", "engine.heartbeat_s=0")
    async with run_server(config, lambda: engine) as running:
        yield running


@asynccontextmanager
async def stream(server: RunningServer, user: str) -> AsyncIterator[Any]:
    call = server.stub.Session(metadata=(("x-user-id", user),))
    yield call
    call.cancel()


def asks(sequence: int, max_tokens: int = SHORT) -> pb.SessionRequest:
    return pb.SessionRequest(complete=request(sequence=sequence, max_tokens=max_tokens, mode=2))


async def answer_to(call: Any) -> pb.SessionResponse:
    """Return the next end or refusal."""
    while True:
        response: pb.SessionResponse = await next_event(call)
        if not response.HasField("delta"):
            return response


async def test_a_message_that_comes_again_is_refused_and_computed_once(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    """While its request runs, which goes on, and after its end."""
    async with stream(server, "ann") as call:
        await call.write(asks(5, 400))
        await eventually(lambda: engine.stats().num_running == 1)
        for replayed in (5, 4):
            await call.write(asks(replayed))
        found = [await answer_to(call) for _ in range(3)]
        refused = [each.sequence for each in found if each.HasField("refusal")]
        ended = [(each.sequence, each.end.usage.completion_tokens) for each in found if each.HasField("end")]
        assert (refused, ended) == ([5, 4], [(5, 400)])
        computed = engine.stats().num_generated_tokens
        for _ in range(20):
            await call.write(asks(5))
            assert "must rise within a session" in (await answer_to(call)).refusal.error.message
        assert engine.stats().num_generated_tokens == computed
        await call.write(asks(6))
        assert (await answer_to(call)).end.usage.completion_tokens == SHORT


async def test_messages_of_one_stream_on_another_change_nothing(server: RunningServer, engine: ScriptedEngine) -> None:
    async with stream(server, "ann") as own, stream(server, "eve") as other:
        await own.write(asks(1, ENDLESS))
        await eventually(lambda: engine.stats().num_running == 1)
        # The same session id and sequence as on the first stream.
        await other.write(pb.SessionRequest(cancel=pb.Cancel(sequence=1)))
        report = pb.ReportFeedbackRequest(session_id="s", sequence=1, kind=pb.FEEDBACK_KIND_SHOWN)
        await other.write(pb.SessionRequest(feedback=report))
        assert "must be that of an answer" in (await answer_to(other)).refusal.error.message
        await other.write(asks(1))
        assert (await answer_to(other)).end.usage.completion_tokens == SHORT
        assert engine.stats().num_running == 1
        await own.write(pb.SessionRequest(cancel=pb.Cancel(sequence=1)))
        assert (await answer_to(own)).end.finish_reason == pb.FINISH_REASON_CANCELLED
