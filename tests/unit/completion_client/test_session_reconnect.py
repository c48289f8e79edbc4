"""Reconnects of a session, against real servers that restart, end streams and close connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ConnectionLostError, Endpoint, SessionSettings, UnavailableError
from completion_client.session import PendingCompletion, Session
from completion_server.api.rpc.status import abort
from completion_server.core.errors import CompletionError, OverloadedError, SessionEndedError
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.redis_servers import free_port
from tests.support.regions import ENDLESS_REQUEST, script
from tests.support.replica_fakes import FakeReplica, Losses, fake_replicas
from tests.support.server import RunningServer, endless_config, endless_engine, eventually, run_server

REQUEST = pb.CompleteRequest(prefix="x = ")
QUICK = SessionSettings(backoff_min_s=0.05, backoff_max_s=0.2, backoff_seed="0")


def make_engine() -> ScriptedEngine:
    return endless_engine(script, ServiceTimes(decode_base_s=0.005))


@asynccontextmanager
async def serving(*overrides: str) -> AsyncIterator[RunningServer]:
    async with run_server(endless_config(*overrides), make_engine) as server:
        yield server


async def test_a_session_comes_back_after_a_restart_and_a_dropped_connection() -> None:
    port, losses = free_port(), Losses()
    listen = f"server.listen=127.0.0.1:{port}"
    async with AsyncExitStack() as stack, CompletionClient(f"127.0.0.1:{port}") as client:
        async with serving(listen):
            session = await stack.enter_async_context(client.session(settings=QUICK, listener=losses))
            pending = session.submit_nowait(ENDLESS_REQUEST)
            assert await anext(aiter(pending))
        with pytest.raises(UnavailableError):
            await pending.result()
        await eventually(lambda: not session.is_connected)  # the end of the stream comes after that of its request
        with pytest.raises(ConnectionLostError, match="not connected"):
            session.submit_nowait(REQUEST)
        async with serving(listen):
            await eventually(lambda: session.is_connected)
            pending = session.submit_nowait(ENDLESS_REQUEST)
            assert await anext(aiter(pending))
            session.reconnect_nowait()
            with pytest.raises(ConnectionLostError, match="the connection was dropped"):
                await pending.result()
            assert not session.is_connected
            await eventually(lambda: session.is_connected)
            assert (await session.complete(REQUEST)).text == "alpha beta"
            await session.aclose()
    assert len(losses.errors) == len(losses.away_s) == 2
    assert min(losses.away_s) > 0


async def test_a_number_that_the_server_would_refuse_is_not_sent() -> None:
    async with serving() as server, CompletionClient(server.ready.address) as client, client.session() as session:
        stream: Any = session._stream
        for sequence in (0, 3, 3, 2):
            request = pb.CompleteRequest(session_id="s", sequence=sequence, prefix="x = ")
            pending = PendingCompletion(stream, sequence, lambda _: None)
            if sequence == 3 and stream.route(3) is None:
                stream.send_nowait(request, pending)
                live = pending
            else:
                with pytest.raises(ValueError, match=f"sequence: must be above .*, was {sequence}"):
                    stream.send_nowait(request, pending)
        assert (await live.result()).text == "alpha beta"


async def test_a_stream_that_idles_out_is_no_loss_and_feedback_on_it_arrives() -> None:
    losses = Losses()
    async with (
        serving("admission.session_idle_s=0.1", "admission.first_request_s=0.1") as server,
        CompletionClient(server.ready.address) as client,
        client.session(settings=QUICK, listener=losses) as session,
    ):
        stream: Any = session._stream
        for number in (1, 2):
            await eventually(lambda: server.count("completion_live_sessions") == 0)
            assert session.is_connected
            completion = await session.complete(REQUEST)
            assert completion.text == "alpha beta"
            await eventually(lambda: stream._legs.current is None)
            shown = pb.ReportFeedbackRequest(sequence=completion.sequence, kind=pb.FEEDBACK_KIND_SHOWN)
            session.report_nowait(shown)
            await eventually(lambda number=number: server.count("completion_feedback_total", kind="shown") == number)
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
        ends_s = loop.time() + 1.0
        while loop.time() < ends_s:
            assert (await session.complete(REQUEST)).text == "alpha beta"
            await asyncio.sleep(0.02)
    assert losses.errors == []


@dataclass
class FailsFirstStream(FakeReplica):
    """Ends the first stream with an error, at once or a while after its request, and serves the next."""

    error: CompletionError = field(default_factory=lambda: SessionEndedError("the stream is old"))
    after_request_s: float | None = None
    opened_at_s: list[float] = field(default_factory=list)

    async def Session(self, request_iterator: Any, context: Any) -> None:
        self.opened_at_s.append(asyncio.get_running_loop().time())
        if len(self.opened_at_s) == 1:
            if self.after_request_s is not None:
                self.timeouts_ms.append((await anext(aiter(request_iterator))).complete.timeout_ms)
                await asyncio.sleep(self.after_request_s)
            await abort(context, self.error)
        await super().Session(request_iterator, context)


async def test_a_request_that_is_sent_again_has_what_is_left_of_its_timeout() -> None:
    server = FailsFirstStream(after_request_s=0.1)
    async with fake_replicas(server), CompletionClient(server.endpoint) as client, client.session() as session:
        assert (await session.complete(REQUEST, timeout_s=60.0)).finish_reason == "stop"
    first_ms, second_ms = server.timeouts_ms
    assert 0 < second_ms <= first_ms - 100


async def test_a_reconnect_waits_as_long_as_the_server_asks() -> None:
    server, losses = FailsFirstStream(error=OverloadedError("too many sessions", retry_after_ms=300)), Losses()
    async with (
        fake_replicas(server),
        CompletionClient(server.endpoint) as client,
        client.session(settings=QUICK, listener=losses) as session,
    ):
        await eventually(lambda: len(losses.errors) == 1 and len(server.opened_at_s) == 2)
        assert (await session.complete(REQUEST)).finish_reason == "stop"
    assert (losses.errors[0].status, losses.errors[0].retry_after_ms) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 300)
    assert server.opened_at_s[1] - server.opened_at_s[0] >= 0.3


FAILED_WRITE = grpc.aio.AioRpcError(
    grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
)
"""What gRPC raises for a write at the moment in which the server ends the stream or the connection."""


class ScriptedCall:
    """A stream whose writes fail, or whose requests are answered with an end."""

    def __init__(self, *, fails: bool, first_text: str = "", ends: "pb.FinishReason" = pb.FINISH_REASON_STOP) -> None:
        self.written: list[int] = []
        self.initial_metadata, self.cancel, self.cancelled = AsyncMock(), Mock(), Mock(return_value=False)
        self.done = self.cancelled
        self._responses: asyncio.Queue[pb.SessionResponse | None] = asyncio.Queue()
        self._fails = fails
        self._ends = ends
        if first_text:
            self._responses.put_nowait(pb.SessionResponse(sequence=1, delta=pb.Delta(text=first_text)))

    async def write(self, message: pb.SessionRequest) -> None:
        sequence = message.complete.sequence
        self.written.append(sequence)
        end = pb.SessionResponse(sequence=sequence, end=pb.End(finish_reason=self._ends))
        self._responses.put_nowait(None if self._fails else end)
        if self._fails:
            raise FAILED_WRITE

    async def read(self) -> pb.SessionResponse:
        response = await self._responses.get()
        if response is None:
            raise FAILED_WRITE
        return response


@asynccontextmanager
async def session_on(losses: Losses, *calls: ScriptedCall) -> AsyncIterator[Session]:
    """Yield a session on a channel that opens the given streams one after another."""
    channel = Mock(get_state=Mock(return_value=grpc.ChannelConnectivity.READY))
    channel.stream_stream.return_value = Mock(side_effect=calls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Endpoint, "open_aio_channel", lambda *_: channel)
        async with (
            CompletionClient("scripted:1") as client,
            client.session(settings=QUICK, listener=losses) as session,
        ):
            yield session


async def test_a_request_whose_write_fails_is_sent_again_without_a_loss() -> None:
    losses, calls = Losses(), [ScriptedCall(fails=True), ScriptedCall(fails=False)]
    async with session_on(losses, *calls) as session:
        assert (await session.complete(REQUEST)).finish_reason == "stop"
        assert (await session.complete(REQUEST)).finish_reason == "stop"
    assert [call.written for call in calls] == [[1], [1, 2]]
    assert losses.errors == []


@pytest.mark.parametrize("first_text", ["", "alpha"])
async def test_a_request_that_has_text_or_was_sent_again_is_lost_with_its_failed_write(first_text: str) -> None:
    losses = Losses()
    failing = [ScriptedCall(fails=True, first_text=first_text)] + [ScriptedCall(fails=True)] * (not first_text)
    async with session_on(losses, *failing, ScriptedCall(fails=False)) as session:
        with pytest.raises(ConnectionLostError, match="lost during a write"):
            await session.complete(REQUEST)
        await eventually(lambda: session.is_connected)
        assert (await session.complete(REQUEST)).finish_reason == "stop"
    assert len(losses.errors) == 1


async def test_a_request_that_its_own_first_sending_superseded_is_lost() -> None:
    """The server may not have noticed yet that the old connection is lost."""
    superseded = ScriptedCall(fails=False, ends=pb.FINISH_REASON_SUPERSEDED)
    async with session_on(Losses(), ScriptedCall(fails=True), superseded) as session:
        with pytest.raises(ConnectionLostError, match="still had the request"):
            await session.complete(REQUEST)
        assert (await session.complete(REQUEST)).finish_reason == "superseded", "not sent again"


async def test_a_request_that_is_cancelled_before_its_write_fails_is_not_sent_again() -> None:
    losses, calls = Losses(), [ScriptedCall(fails=True), ScriptedCall(fails=False)]
    async with session_on(losses, *calls) as session:
        pending = session.submit_nowait(REQUEST)
        pending.cancel_nowait()
        assert (await pending.result()).finish_reason == "cancelled"
        assert (await session.complete(REQUEST)).finish_reason == "stop"
    assert [call.written for call in calls] == [[1], [2]]
