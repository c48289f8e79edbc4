"""The scheduler in front of the real engine: after any behaviour of users the engine is idle."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.app import app as code
from tests.support.server import Answer, RunningServer, ask, eventually, make_config, next_event, request, run_server

if TYPE_CHECKING:
    from completion_server.engine.interface import Engine
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = pytest.mark.serial

MAX_SESSIONS = 200
NUM_CONNECTIONS = 4
KEYS = 4
IDLE_WITHIN_S = 120.0
"""For the last aborts, and for an answer; on a busy machine."""
SOURCE = Path(cast("str", code.__file__)).read_text(encoding="utf-8")


class BorrowedEngine:
    """The test session's engine, which the server of one test neither starts nor stops."""

    def __init__(self, engine: "VllmEngine") -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


@asynccontextmanager
async def serving(engine: "VllmEngine", *overrides: str) -> AsyncIterator[RunningServer]:
    """Run a server on the session's engine, and check that it leaves nothing behind in it."""
    sizes = ("engine.max_num_seqs=16", "scheduling.max_slots=16", "engine.heartbeat_s=0", "engine.warm_up=false")
    sizes += ("engine.hang_timeout_s=60", "limits.max_deadline_s=120")  # for a busy machine
    # All sessions type into one file: with a cache for each user the engine would compute it for each of them.
    sizes += (f"server.max_concurrent_streams={2 * MAX_SESSIONS}", "engine.cache_scope=tenant")
    borrowed = cast("Engine", BorrowedEngine(engine))
    async with run_server(make_config(*sizes, *overrides), lambda: borrowed) as server:
        # The statistics are those of the last step, so there has to be one before they can be compared.
        await ask(server.stub, request(max_tokens=2, session_id="before"))
        await idle(engine)
        before = engine.stats()
        yield server
        await ask(server.stub, request(max_tokens=2, session_id="after"))
        await idle(engine)
        assert engine.stats().kv_usage == before.kv_usage
        assert server.count("completion_running_requests") == 0
        assert server.count("completion_queued_requests") == 0


async def idle(engine: "VllmEngine") -> None:
    await eventually(lambda: engine.stats().num_running == 0 and engine.stats().num_waiting == 0, IDLE_WITHIN_S)


def key(session: int, number: int, **fields: object) -> pb.CompleteRequest:
    """Return the request of an editor; each editor types at its own position of a real file."""
    start = 400 + session * 37
    return pb.CompleteRequest(
        session_id=f"s{session}",
        sequence=number + 1,
        document_uri=f"file:///{session}.py",
        prefix=SOURCE[: start + 3 * number],
        suffix=SOURCE[start + 60 :],
        mode=pb.MODE_MULTI_LINE,
        **{"max_tokens": 12} | fields,
    )


async def type_on(stub: CompletionServiceStub, session: int) -> list[Answer]:
    """Type a few keys into one session's stream, the next one often before the answer; return all answers."""
    call = stub.Session(metadata=(("x-user-id", f"user-{session}"),))
    answers = [Answer() for _ in range(KEYS)]

    async def read() -> None:
        while any(answer.end is None for answer in answers):
            event = await next_event(call, IDLE_WITHIN_S)
            answers[event.sequence - 1].take(event)

    reading = asyncio.create_task(read())
    for number in range(KEYS):
        await call.write(pb.SessionRequest(complete=key(session, number)))
        await asyncio.sleep(0.05 * (1 + session % 5))
    await asyncio.wait_for(reading, IDLE_WITHIN_S)
    await call.done_writing()
    return answers


@pytest.mark.parametrize("num_sessions", [24, pytest.param(MAX_SESSIONS, marks=pytest.mark.full)])
async def test_many_sessions_typing_leave_nothing_behind(vllm_engine: "VllmEngine", num_sessions: int) -> None:
    async with serving(vllm_engine) as server, AsyncExitStack() as stack:
        stubs = []
        for _ in range(NUM_CONNECTIONS):
            channel = grpc.aio.insecure_channel(server.ready.address, (("grpc.use_local_subchannel_pool", 1),))
            stubs.append(CompletionServiceStub(await stack.enter_async_context(channel)))
        sessions = range(num_sessions)
        typed = await asyncio.gather(*(type_on(stubs[session % NUM_CONNECTIONS], session) for session in sessions))
        reasons = [answer.reason for answer in itertools.chain.from_iterable(typed)]
        assert len(reasons) == num_sessions * KEYS
        assert set(reasons) <= {"stop", "length", "superseded", "shed"}
        assert reasons.count("stop") + reasons.count("length") > 0
        for answer in itertools.chain.from_iterable(typed):
            assert answer.reason != "shed" or not answer.text
