"""Messages that do harm when they are received or parsed, from a client without the checks of a gRPC library."""

import asyncio
import gc
import gzip
import random
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio

from completion.v1 import completion_pb2 as pb
from completion_server.requests.limits.settings import LimitSettings
from loadtest.bench.attacks.http2 import Http2Connection, framed
from tests.attack.conftest import MIB, attacked, engine
from tests.attack.malformed import mutated
from tests.support.server import RunningServer, ask, make_config, request, run_server

EMPTY_SNIPPET = b"\x3a\x00"
GZIP = (("grpc-encoding", "gzip"),)
OK, INVALID, DEADLINE, EXHAUSTED, UNAVAILABLE = 0, 3, 4, 8, 14


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with run_server(make_config("admission.user_requests_per_s=0"), engine) as running:
        yield running


async def connect(server: RunningServer) -> Http2Connection:
    return await Http2Connection.open(server.ready.address)


async def answer(
    connection: Http2Connection, method: str, data: bytes, metadata: tuple[tuple[str, str], ...] = ()
) -> tuple[int | None, str]:
    """Send a framed message as a whole call; return the status and its text."""
    stream = await connection.ask(data, metadata, method)
    return stream.status, stream.details


def bomb(size: int) -> bytes:
    head = request().SerializeToString()
    return head + EMPTY_SNIPPET * ((size - len(head)) // 2)


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_a_message_of_empty_snippets_is_refused_unparsed(server: RunningServer, is_compressed: bool) -> None:
    async with await connect(server) as connection:
        message = bomb(MIB)
        data = framed(gzip.compress(message) if is_compressed else message, is_compressed=is_compressed)
        status, details = await answer(connection, "Complete", data, GZIP)
        assert (status, details) == (INVALID, "message: must have at most 724 fields, got more")
        session = pb.SessionRequest(complete=request()).SerializeToString()
        status, _ = await answer(connection, "Session", framed(session + bomb(MIB)), GZIP)
        assert status == OK  # that request alone was refused
        status, _ = await answer(connection, "Complete", framed(request().SerializeToString()))
        assert status == OK


@pytest.mark.parametrize("size", [2 * MIB, 64 * MIB])
@pytest.mark.parametrize("is_compressed", [False, True])
async def test_a_message_beyond_all_limits_is_refused_by_the_transport(
    server: RunningServer, size: int, is_compressed: bool
) -> None:
    async with await connect(server) as connection:
        message = gzip.compress(bomb(size), 1) if is_compressed else bomb(size)
        status, details = await answer(connection, "Complete", framed(message, is_compressed=is_compressed), GZIP)
        assert status == EXHAUSTED
        assert "larger than max" in details
        assert server.count("completion_requests_total", outcome="stop", trigger="automatic", shed_reason="") == 0


async def test_a_message_at_every_limit_is_served(server: RunningServer) -> None:
    limits = LimitSettings()
    snippet = pb.ContextSnippet(uri="u" * limits.max_uri_bytes, text="t\n" * (limits.max_snippet_bytes // 2), score=0.5)
    text = "x = 1\n" * (limits.max_prefix_bytes // 6)
    whole = request(text, suffix=text, snippets=[snippet] * limits.max_snippets, stop=["s" * 64] * limits.max_stop)
    assert (await ask(server.stub, whole)).reason == "stop"


async def test_a_message_that_lacks_its_last_byte_is_not_waited_for() -> None:
    async with attacked("server.receive_timeout_s=0.2") as (_, connection):
        for method, message in (
            ("Complete", request()),
            ("ReportFeedback", pb.ReportFeedbackRequest(session_id="s")),
        ):
            stream = connection.call(method)
            await stream.send(framed(message.SerializeToString())[:-1])
            assert await stream.ended(20)
            assert (stream.status, "was not received" in stream.details) == (DEADLINE, True)


HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("method", [f"{HEALTH}/Check", f"{HEALTH}/Watch", REFLECTION])
async def test_the_standard_services_hold_no_message_that_does_not_end_or_is_large(method: str) -> None:
    async with attacked("server.receive_timeout_s=0.2") as (_, connection):
        half = connection.call(method)
        await half.send(framed(b"x" * 1000)[:-1])
        assert await half.ended(20)
        assert (half.status, "was received within" in half.details) == (DEADLINE, True)
        expected = "message: must be at most 4096 bytes, got 5000"
        assert await answer(connection, method, framed(b"x" * 5000)) == (INVALID, expected)
        assert (await answer(connection, method, framed(b"\xff")))[0] == INVALID


@pytest.mark.parametrize("text", [b"x", b"\xff"], ids=["too long", "not UTF-8"])
async def test_what_is_refused_is_freed_without_the_garbage_collector(server: RunningServer, text: bytes) -> None:
    message, process = b"\x0a\x01s\x2a" + b"\xe0\xfb\x73" + text * 1_900_000, psutil.Process()
    async with await connect(server) as connection:
        await answer(connection, "Complete", framed(message))  # allocates the memory that is allocated once
        gc.collect()
        gc.disable()
        try:
            before = process.memory_info().rss
            for _ in range(40):
                assert (await answer(connection, "Complete", framed(message)))[0] == INVALID
            assert process.memory_info().rss - before < 40 * MIB
        finally:
            gc.enable()


@pytest.mark.parametrize(
    ("key", "why"), [("admission.first_request_s", "no request came"), ("admission.session_idle_s", "no message for")]
)
async def test_a_session_with_half_a_message_is_ended(key: str, why: str) -> None:
    async with attacked(f"{key}=0.3") as (server, connection):
        stream = connection.call("Session")
        whole = framed(pb.SessionRequest(complete=request()).SerializeToString())
        if key == "admission.session_idle_s":
            await stream.send(whole)
        await stream.send(whole[:-1])
        assert await stream.ended(20)
        assert (stream.status, why in stream.details) == (UNAVAILABLE, True)
        assert server.count("completion_live_sessions") == 0


async def test_streams_of_one_connection_are_bounded() -> None:
    async with attacked("server.max_concurrent_streams=5") as (server, connection):
        assert connection.max_streams == 5
        streams = [connection.call("Session") for _ in range(8)]
        async with asyncio.timeout(20):
            while sum(stream.status is not None for stream in streams) < 3:
                await connection.wait()
        assert server.count("completion_live_sessions") <= 5


async def test_connections_are_bounded() -> None:
    async with run_server(make_config("server.max_connections=3"), engine) as server:
        assert (await ask(server.stub, request())).reason == "stop"  # the first of them
        async with await connect(server), await connect(server):
            with pytest.raises(OSError, match="hung up"):
                await connect(server)


@pytest.mark.parametrize("num", [400, pytest.param(20_000, marks=pytest.mark.large)])
async def test_mutated_messages_are_answered_and_harm_no_other_caller(num: int) -> None:
    async with run_server(make_config("admission.user_requests_per_s=0"), engine) as server:
        chance = random.Random(7)
        async with await connect(server) as connection:
            good = request("x = 1\n" * 20, snippets=[{"text": "y"}] * 3, stop=["\n\n"], max_tokens=3, temperature=0.5)
            for number in range(num):
                method, message = ("Complete", good) if number % 2 else ("Session", pb.SessionRequest(complete=good))
                data = framed(mutated(message.SerializeToString(), chance))
                status, details = await answer(connection, method, data)
                assert status in {OK, INVALID}, details
            assert (await ask(server.stub, request())).reason == "stop"
            assert server.count("completion_live_sessions") == 0
