"""Reconnects of a session, against real servers that restart, end streams and close connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceServicer, add_CompletionServiceServicer_to_server
from completion_client import CompletionClient, ConnectionLostError, ServiceError, SessionSettings, UnavailableError
from completion_server.core.errors import OverloadedError
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.rpc.status import abort
from tests.support.server import ENDLESS, RunningServer, endless_config, endless_engine, eventually, run_server

REQUEST = pb.CompleteRequest(prefix="x = ")
ENDLESS_REQUEST = pb.CompleteRequest(prefix="x = ", mode=pb.MODE_MULTI_LINE, max_tokens=ENDLESS)
QUICK = SessionSettings(backoff_min_s=0.05, backoff_max_s=0.2, backoff_seed="0")


@dataclass
class Losses:
    """Counts the calls of a StreamListener."""

    errors: list[ServiceError] = field(default_factory=list)
    away_s: list[float] = field(default_factory=list)

    def on_lost(self, error: ServiceError) -> None:
        self.errors.append(error)

    def on_reconnected(self, away_s: float) -> None:
        self.away_s.append(away_s)


def script(request: GenerationRequest) -> Iterable[str]:
    if request.max_tokens == ENDLESS:
        return (f" w{i}" for i in range(ENDLESS))
    return ("alpha", " beta", "\n")


def make_engine() -> ScriptedEngine:
    return endless_engine(script, ServiceTimes(decode_base_s=0.005))


@asynccontextmanager
async def serving(*overrides: str) -> AsyncIterator[RunningServer]:
    async with run_server(endless_config(*overrides), make_engine) as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


async def test_a_session_comes_back_after_its_server_restarts() -> None:
    port, losses = free_port(), Losses()
    listen = f"server.listen=127.0.0.1:{port}"
    async with AsyncExitStack() as stack, CompletionClient(f"127.0.0.1:{port}") as client:
        async with serving(listen):
            session = await stack.enter_async_context(client.session(settings=QUICK, listener=losses))
            pending = session.submit_nowait(ENDLESS_REQUEST)
            assert await anext(aiter(pending))
        with pytest.raises(UnavailableError):
            await pending.result()
        with pytest.raises(ConnectionLostError, match="not connected"):
            session.submit_nowait(REQUEST)
        async with serving(listen):
            await eventually(lambda: session.is_connected)
            assert (await session.complete(REQUEST)).text == "alpha beta"
            await session.aclose()
    assert len(losses.errors) == len(losses.away_s) == 1
    assert losses.away_s[0] > 0


async def test_a_dropped_connection_fails_its_open_request_and_is_reopened() -> None:
    losses = Losses()
    async with (
        serving() as server,
        CompletionClient(server.ready.address) as client,
        client.session(settings=QUICK, listener=losses) as session,
    ):
        pending = session.submit_nowait(ENDLESS_REQUEST)
        assert await anext(aiter(pending))
        session.reconnect_nowait()
        with pytest.raises(ConnectionLostError, match="the connection was dropped"):
            await pending.result()
        assert not session.is_connected
        await eventually(lambda: session.is_connected)
        assert (await session.complete(REQUEST)).text == "alpha beta"
    assert len(losses.errors) == len(losses.away_s) == 1


async def test_a_stream_that_idles_out_is_no_loss() -> None:
    losses = Losses()
    async with (
        serving("admission.session_idle_s=0.1", "admission.first_request_s=0.1") as server,
        CompletionClient(server.ready.address) as client,
        client.session(settings=QUICK, listener=losses) as session,
    ):
        for _ in range(2):
            await eventually(lambda: server.count("completion_live_sessions") == 0)
            assert session.is_connected
            assert (await session.complete(REQUEST)).text == "alpha beta"
    assert losses.errors == []


async def test_old_connections_and_streams_are_replaced_without_a_loss() -> None:
    """The server sends GOAWAY on a connection that is old, and SESSION_ENDED on a stream that is."""
    losses = Losses()
    ages = ("server.max_connection_age_s=0.2", "server.max_session_age_s=0.4", "server.max_connection_age_grace_s=20")
    loop = asyncio.get_running_loop()
    async with (
        serving(*ages) as server,
        CompletionClient(server.ready.address) as client,
        client.session(settings=QUICK, listener=losses) as session,
    ):
        ends_s = loop.time() + 1.5
        while loop.time() < ends_s:
            assert (await session.complete(REQUEST)).text == "alpha beta"
            await asyncio.sleep(0.02)
    assert losses.errors == []


class Overloaded(CompletionServiceServicer):
    """Refuses the first stream with a delay and serves the next."""

    def __init__(self, retry_after_ms: int) -> None:
        self.retry_after_ms = retry_after_ms
        self.opened_at_s: list[float] = []

    async def Session(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.SessionResponse]:
        self.opened_at_s.append(asyncio.get_running_loop().time())
        if len(self.opened_at_s) == 1:
            await abort(context, OverloadedError("too many sessions", retry_after_ms=self.retry_after_ms))
        async for message in request_iterator:
            end = pb.End(finish_reason=pb.FINISH_REASON_STOP)
            yield pb.SessionResponse(sequence=message.complete.sequence, end=end)


async def test_a_reconnect_waits_as_long_as_the_server_asks() -> None:
    servicer, losses = Overloaded(retry_after_ms=300), Losses()
    server = grpc.aio.server()
    add_CompletionServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with (
        CompletionClient(f"127.0.0.1:{port}") as client,
        client.session(settings=QUICK, listener=losses) as session,
    ):
        await eventually(lambda: len(losses.errors) == 1 and len(servicer.opened_at_s) == 2)
        assert (await session.complete(REQUEST)).finish_reason == "stop"
    await server.stop(0)
    assert (losses.errors[0].status, losses.errors[0].retry_after_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 300)
    assert 0.3 <= servicer.opened_at_s[1] - servicer.opened_at_s[0] < 2
