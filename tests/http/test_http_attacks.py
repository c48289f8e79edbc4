"""What no plugin sends: foreign pages, large, slow and deep bodies, idle connections."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest
import pytest_asyncio

from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.requests.limits.settings import LimitSettings
from tests.support.http_clients import (
    ANSWERS_WITHIN_S,
    HTTP,
    RawConnection,
    get,
    head,
    post,
    raw_connection,
)
from tests.support.server import (
    ENDLESS,
    RunningServer,
    endless_config,
    endless_engine,
    eventually,
    make_config,
    run_server,
)

WORDS = ("alpha", "\n")
HASTY, STALL = "server.receive_timeout_s=1", "server.stall_timeout_s=0.5"
MAX_CONNECTIONS = 50
WHOLE = b'e\r\n{"prompt":"x"}\r\n0\r\n'
"""A chunked body, to which trailers may follow."""
BODY = b'{"prompt":"x"}'
ASKED = head("/infill", f"content-length: {len(BODY)}") + BODY
ENDLESS_BODY = json.dumps({"prompt": "x", "stream": True, "n_predict": ENDLESS}).encode()
ASKED_ENDLESSLY = head("/infill", f"content-length: {len(ENDLESS_BODY)}") + ENDLESS_BODY


def make_engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: WORDS)


@pytest_asyncio.fixture(scope="module")
async def server() -> AsyncIterator[RunningServer]:
    """Yield a server that serves after all tests."""
    async with run_server(make_config(HTTP), make_engine) as running:
        yield running


@pytest_asyncio.fixture(scope="module")
async def hasty_server() -> AsyncIterator[RunningServer]:
    """Yield a server that soon gives up slow clients."""
    async with run_server(make_config(HASTY, HTTP), make_engine) as running:
        yield running


async def is_served(server: RunningServer) -> bool:
    try:
        return bool((await post(server, "/infill", {"prompt": "x"})).json["content"] == "alpha")
    except aiohttp.ClientError:
        return False


@pytest.mark.parametrize("header", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}])
async def test_a_web_page_is_refused(server: RunningServer, header: dict[str, str]) -> None:
    for answer in (await post(server, "/infill", {"prompt": "x"}, header), await get(server, "/health", header)):
        assert answer.status == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "access-control-allow-origin" not in (await get(server, "/health")).headers
    assert await is_served(server)


def chunk(size: int) -> bytes:
    return f"{size:x}\r\n".encode() + b"x" * size + b"\r\n"


LARGE, CHUNKED = "content-length: 100000000", "transfer-encoding: chunked"


@pytest.mark.parametrize(
    "sent",
    [
        head("/infill", LARGE),
        head("/infill", LARGE).replace(b"HTTP/1.1", b"HTTP/1.0"),
        head("/admin/speculation", LARGE),
        head("/infill", CHUNKED) + chunk(LimitSettings().max_message_bytes) + chunk(1),
    ],
    ids=["announced", "HTTP 1.0", "admin", "chunked"],
)
async def test_a_large_body_is_refused_unread(server: RunningServer, sent: bytes) -> None:
    async with raw_connection(server) as connection:
        await connection.send(sent)
        assert await connection.status() == 413
        assert b'"message":"body: must be at most ' in await connection.rest()
    assert await is_served(server)


@pytest.mark.parametrize(
    "data",
    [
        head("/infill", *(f"x-{i}: y" for i in range(100)), "content-length: 2") + b"{}",
        head("/infill", "x: " + "y" * 20_000, "content-length: 2") + b"{}",
        head("/" + "x" * 20_000),
        b"POST /infill HTTP/1.1\r\nx: " + b"y" * 40_000,
        b"\x16\x03\x01 no HTTP at all\r\n\r\n",
    ],
    ids=["headers", "header", "path", "endless", "binary"],
)
async def test_a_bad_head_is_refused(server: RunningServer, data: bytes) -> None:
    async with raw_connection(server) as connection:
        await connection.send(data)
        assert (await connection.rest()).startswith(b"HTTP/1.1 400 ")
    assert await is_served(server)


async def test_a_compressed_body_and_a_text_beyond_its_limit_are_refused_with_the_reason(server: RunningServer) -> None:
    compressed = await post(server, "/v1/completions", b"x", {"content-encoding": "gzip"})
    assert compressed.json["error"]["message"].startswith("header content-encoding: must be identity")
    deep = await post(server, "/v1/completions", b"[" * 100_000)
    assert (deep.status, deep.json["error"]["type"]) == (400, "invalid_request_error")
    large = await post(server, "/v1/completions", {"prompt": "x" * 600_000})
    assert large.json["error"]["message"] == "prompt or prefix: must be at most 524288 bytes, got 600000"


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /infill HTTP/1.1\r\nhost: loc", head("/infill", "content-length: 100") + b"{"],
    ids=["nothing", "head", "body"],
)
async def test_connections_without_a_whole_request_are_bounded_and_keep_nobody_out(sent: bytes) -> None:
    limits = (f"server.http_max_connections={MAX_CONNECTIONS}", "server.receive_timeout_s=600", HTTP)
    async with run_server(make_config(*limits), make_engine) as server, AsyncExitStack() as stack:
        opened = []
        for _ in range(4 * MAX_CONNECTIONS):
            opened.append(await stack.enter_async_context(raw_connection(server)))
            await opened[-1].send(sent)
        older, newest = opened[:-MAX_CONNECTIONS], opened[-MAX_CONNECTIONS:]
        assert await closed_within(older, ANSWERS_WITHIN_S) == older
        assert await closed_within(newest, 0.1) == []
        assert await is_served(server)


async def test_what_comes_slowly_is_not_waited_for(hasty_server: RunningServer) -> None:
    async def answer(sent: bytes) -> bytes:
        async with raw_connection(hasty_server) as connection:
            await connection.send(sent)
            return (await connection.rest())[:12]

    sent = (
        *(b"", b"POST /infill HTTP/1.1\r\nhost: loc", ASKED + b"POST "),
        *(head("/infill", framing) for framing in ("content-length: 100", CHUNKED)),
    )
    answers = await asyncio.gather(*map(answer, sent))
    assert answers == [b"", b"", b"HTTP/1.1 200", b"HTTP/1.1 408", b"HTTP/1.1 408"]


@pytest_asyncio.fixture
async def endless() -> ScriptedEngine:
    return endless_engine(lambda _request: (f"{i} " for i in range(ENDLESS)), ServiceTimes(decode_base_s=0.01))


async def test_a_connection_whose_request_is_served_makes_no_room(endless: ScriptedEngine) -> None:
    config = endless_config(HTTP, "server.http_max_connections=1")
    async with run_server(config, lambda: endless) as server, raw_connection(server) as busy:
        await busy.send(ASKED_ENDLESSLY)
        await eventually(lambda: endless.stats().num_running == 1)
        async with raw_connection(server) as further:
            assert await further.rest() == b""
        assert endless.stats().num_running == 1


async def closed_within(connections: list[RawConnection], within_s: float) -> list[RawConnection]:
    """Return the connections that the server closes in this time."""

    async def is_closed(connection: RawConnection) -> bool:
        try:
            async with asyncio.timeout(within_s):
                return await connection.reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    found = await asyncio.gather(*(is_closed(each) for each in connections))
    return [each for each, is_gone in zip(connections, found, strict=True) if is_gone]


async def test_a_stalled_reader_is_cut_off_and_frees_the_engine() -> None:
    words = (" ".join(f"{i * 1_000_003 + j:x}" for j in range(400)) + "\n" for i in range(ENDLESS))
    engine = endless_engine(lambda _request: words, ServiceTimes())
    config = endless_config(STALL, "engine.heartbeat_s=0", "server.delta_pause_ms=0", HTTP)
    async with run_server(config, lambda: engine) as server, raw_connection(server) as connection:
        connection.read_little()
        await connection.send(ASKED_ENDLESSLY)
        await eventually(lambda: engine.stats().num_generated_tokens > 0)
        await eventually(lambda: engine.stats().num_running == 0)
        assert server.count("completion_requests_total", outcome="cancelled", trigger="automatic", shed_reason="") == 1


async def test_mutated_requests_are_answered_or_closed(server: RunningServer) -> None:
    whole = head("/infill", f"content-length: {len(BODY)}", "connection: close") + BODY
    for at in range(0, len(whole), 3):
        for changed in (whole[:at] + b"\x00" + whole[at + 1 :], whole[:at]):
            async with raw_connection(server) as connection:
                await connection.send(changed)
                connection.writer.write_eof()
                answer = await connection.rest()
                assert answer == b"" or answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 4"))
    assert await is_served(server)


async def test_a_trailer_stands_for_no_header() -> None:
    async with run_server(make_config(HTTP, "admission.require_user=true"), make_engine) as named:
        for header, status in (("x-other: ann", 401), ("x-user-id: ann", 200)):
            async with raw_connection(named) as connection:
                request_head = head("/infill", "transfer-encoding: chunked", header)
                await connection.send(request_head + WHOLE + b"x-user-id: bob\r\nhost: evil.example\r\n\r\n")
                assert await connection.status() == status


LONG_BODY = b"61a80\r\n" + b"x" * 400_000 + b"\r\n0\r\n"


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (WHOLE, b"x: " + b"y" * 8_000),
        (WHOLE + b"x: y\r\n", b"x: y\r\n" * 1_000),
        (LONG_BODY + b"x: y\r\n", b"x: y\r\n" * 1_000),
        (b"", b"1;" + b"y" * 10_000 + b"\r\nx\r\n"),
    ],
    ids=["long trailer", "trailers", "trailers of a large body", "extensions of chunks"],
)
async def test_endless_framing_ends_the_connection(server: RunningServer, begin: bytes, endless: bytes) -> None:
    async with raw_connection(server) as connection:
        await connection.send(head("/infill", CHUNKED) + begin)
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                await connection.send(endless)
                await asyncio.sleep(0)
        assert await connection.rest() == b""
    assert await is_served(server)


async def test_a_body_in_chunks_of_a_byte_is_taken(server: RunningServer) -> None:
    body = json.dumps({"prompt": "x = 1\n" * 20_000}).encode()
    async with raw_connection(server) as connection:
        chunks = b"".join(b"1\r\n%c\r\n" % each for each in body)
        await connection.send(head("/infill", "transfer-encoding: chunked") + chunks + b"0\r\n\r\n")
        assert await connection.status() == 200


@pytest.mark.parametrize(
    "request_head",
    [
        head("/infill", "content-length: 50", "content-encoding: gzip"),
        head("/health", "content-length: 50"),
        head("/health", "transfer-encoding: chunked"),
        head("/nothing", "content-length: 50"),
    ],
    ids=["refused", "document", "chunked", "missing"],
)
async def test_an_answer_before_the_body_closes_the_connection(
    hasty_server: RunningServer, request_head: bytes
) -> None:
    async with raw_connection(hasty_server) as connection:
        await connection.send(request_head)
        assert b"connection: close\r\n" in await connection.rest()
    assert await is_served(hasty_server)


async def test_a_pipelined_request_ends_the_connection_and_frees_the_engine(endless: ScriptedEngine) -> None:
    async with run_server(endless_config(HTTP), lambda: endless) as server, raw_connection(server) as connection:
        await connection.send(ASKED_ENDLESSLY)
        await eventually(lambda: endless.stats().num_running == 1)
        await connection.send(ASKED_ENDLESSLY)
        await connection.rest()
        await eventually(lambda: endless.stats().num_running == 0)


@pytest.mark.parametrize("offered", ["h2c", "websocket"])
async def test_an_offer_to_upgrade_is_passed_over(server: RunningServer, offered: str) -> None:
    """Java's client offers HTTP/2 with its first request."""
    offer = ("connection: Upgrade, HTTP2-Settings", f"upgrade: {offered}", "http2-settings: AAEAAEAAAAIAAAAB")
    async with raw_connection(server) as connection:
        await connection.send(head("/infill", *offer, f"content-length: {len(BODY)}") + BODY)
        assert await connection.status() == 200
