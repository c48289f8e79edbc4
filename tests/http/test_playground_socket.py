"""The WebSocket of the page: whom it serves, its requests and its limits, what an operator changes."""

import asyncio
import json
import os
from collections.abc import AsyncIterator

import aiohttp
import psutil
import pytest
import pytest_asyncio

from completion_server.engine.processes import runs
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.http.playground.connection import MAX_MESSAGE_BYTES
from tests.support.http_clients import HTTP, PAGE_ADMIN, get, http_session, raw_connection
from tests.support.page_sockets import opened
from tests.support.server import (
    ENDLESS,
    RunningServer,
    endless_config,
    endless_engine,
    eventually,
    make_config,
    run_server,
)

MAX_K = 4
WORDS = ("alpha", " beta", "\n")
HANDSHAKE = (
    b"GET /playground/socket HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\nconnection: upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def make_engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: WORDS, num_speculative_tokens=MAX_K)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with run_server(make_config(HTTP, PAGE_ADMIN), make_engine) as running:
        yield running


async def test_a_request_is_answered_with_its_stages(server: RunningServer) -> None:
    async with opened(server) as page:
        about = await page.next("about")
        assert about["model"] == "scripted"
        await page.send("ask", number=1, prefix="x = ", suffix="\n", uri="playground:///a.py", language="python")
        text, end = await page.answer(1)
        assert (text, end["reason"]) == ("alpha beta", "stop")
        assert end["total_ms"] >= end["prefill_ms"] + end["decode_ms"] > 0
        assert end["prompt_tokens"] > 0
        await page.send("report", number=1, kind="shown")
        await page.send("report", number=1, kind="accepted", characters=5)
        await page.send("report", number=9, kind="shown")
        await eventually(lambda: server.count("completion_feedback_total", kind="refused") == 1)
        assert server.count("completion_accepted_characters_total") == 5
        figures = await page.until(lambda message: message.get("answered") == 1)
        assert (figures["sessions"], figures["live"], figures["prompt_tokens"]) == (1, 0, end["prompt_tokens"])
    await eventually(lambda: server.count("completion_live_sessions") == 0)


async def test_a_newer_request_supersedes_and_a_page_that_leaves_cancels() -> None:
    times = ServiceTimes(decode_base_s=0.01)
    async with run_server(endless_config(HTTP), lambda: endless_engine(lambda _r: ("a ",) * ENDLESS, times)) as server:
        async with opened(server) as page:
            await page.send("ask", number=1, prefix="x = ", mode="multi_line")
            await page.next("text")
            await page.send("ask", number=2, prefix="another line\n", mode="multi_line")
            assert (await page.answer(1))[1]["reason"] == "superseded"
            await page.send("cancel", number=2)
            assert (await page.answer(2))[1]["reason"] == "cancelled"
            await page.send("ask", number=3, prefix="y = ", mode="multi_line")
            await page.until(lambda message: message.get("number") == 3)
        await eventually(lambda: server.count("completion_running_requests") == 0)
        assert server.count(
            "completion_requests_total", outcome="cancelled", trigger="automatic", shed_reason=""
        ) == 2  # fmt: skip


async def test_two_pages_of_one_user_have_numbers_of_their_own() -> None:
    """The user has one live request, the newest of both pages."""
    times, ann = ServiceTimes(decode_base_s=0.01), {"X-User-Id": "ann"}
    config = endless_config(HTTP, f"limits.default_tokens_multi_line={ENDLESS}")
    fields = {"trigger": "explicit", "mode": "multi_line"}
    async with (
        run_server(config, lambda: endless_engine(lambda _r: (f"w{i} " for i in range(ENDLESS)), times)) as server,
        opened(server, **ann) as first,
        opened(server, **ann) as second,
    ):
        await first.send("ask", number=5, prefix="x = ", **fields)
        await first.next("text")
        await second.send("ask", number=1, prefix="another line\n", **fields)
        assert (await first.answer(5))[1]["reason"] == "superseded"
        await second.next("text")


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_another_sites_page_is_refused(server: RunningServer, origin: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        async with opened(server, Origin=origin):
            pass
    assert refusal.value.status == 403


async def test_a_foreign_name_is_refused_also_with_an_origin_to_match(server: RunningServer) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        async with opened(server, Host="evil.example", Origin="http://evil.example"):
            pass
    assert refusal.value.status == 403
    assert (await get(server, "/", {"host": "evil.example"})).status == 403


async def test_what_is_no_browser_is_refused(server: RunningServer) -> None:
    async with http_session() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await session.ws_connect(f"http://{server.ready.http_address}/playground/socket")
    assert refusal.value.status == 403


@pytest.mark.parametrize(
    ("sent", "code"),
    [("{", 1008), ('{"type":"fly"}', 1008), (b"{}", 1008), ("x" * (MAX_MESSAGE_BYTES + 1), 1009)],
)
async def test_a_message_that_no_page_sends_ends_the_connection(
    server: RunningServer, sent: str | bytes, code: int
) -> None:
    async with opened(server) as page:
        await (page.socket.send_bytes(sent) if isinstance(sent, bytes) else page.socket.send_str(sent))
        assert await page.close_code() == code
    async with opened(server) as page:
        await page.send("ask", number=1, prefix="x = ")
        assert (await page.answer(1))[0] == "alpha beta"


async def test_a_request_beyond_a_limit_ends_with_an_error_that_names_it() -> None:
    config = make_config(HTTP, "limits.max_prefix_bytes=100")
    async with run_server(config, make_engine) as server, opened(server) as page:
        await page.send("ask", number=1, prefix="x" * 101)
        end = (await page.answer(1))[1]
        assert end["reason"] == "error"
        assert "must be at most 100 bytes" in end["error"]
        await page.send("ask", number=1, prefix="x")
        assert "must rise" in (await page.until(lambda message: message.get("error", "") != ""))["error"]
        await page.send("ask", number=2, prefix="x")
        assert (await page.answer(2))[1]["reason"] == "stop"


async def test_a_flood_of_messages_is_read_at_its_rate(server: RunningServer) -> None:
    """Of 300 messages 100 are a burst; the others are read at 50 a second, so the last one waits 4 s."""
    loop = asyncio.get_running_loop()
    async with opened(server) as page:
        began_at = loop.time()
        for _ in range(300):
            await page.send("cancel", number=1)
        await page.send("ask", number=1, prefix="x = ")
        assert (await page.answer(1))[0] == "alpha beta"
        assert loop.time() - began_at > 3.5


async def test_a_page_that_does_not_read_is_cut_off_and_frees_the_engine() -> None:
    words = (" ".join(f"{i * 1_000_003 + j:x}" for j in range(400)) + "\n" for i in range(ENDLESS))
    engine = endless_engine(lambda _request: words, ServiceTimes())
    endless = ("limits.default_tokens_multi_line=1000000", "engine.heartbeat_s=0", "server.delta_pause_ms=0")
    config = endless_config(*endless, "server.stall_timeout_s=0.5", HTTP)
    ask = json.dumps({"type": "ask", "number": 1, "trigger": "explicit", "mode": "multi_line", "prefix": "x"}).encode()
    masked = bytes([0x81, 0x80 | len(ask), 0, 0, 0, 0]) + ask  # one whole text frame, masked with zeros
    async with run_server(config, lambda: engine) as server, raw_connection(server) as connection:
        connection.read_little()
        await connection.send(HANDSHAKE)
        assert await connection.status() == 101
        await connection.send(masked)
        await eventually(lambda: engine.stats().num_generated_tokens > 0)
        await eventually(lambda: engine.stats().num_running == 0 and server.count("completion_live_sessions") == 0)
        cancelled = {"outcome": "cancelled", "trigger": "explicit", "shed_reason": ""}
        await eventually(lambda: server.count("completion_requests_total", **cancelled) == 1)


async def test_an_operator_sets_k(server: RunningServer) -> None:
    async with opened(server) as page:
        figures = await page.next("figures")
        assert (figures["k"], figures["k_max"], figures["k_mode"], figures["k_locked"]) == (4, MAX_K, "fixed", "")
        await page.send("set_k", k=1)
        await page.until(lambda message: message.get("k") == 1)
        await page.send("set_k", k=MAX_K + 1)
        assert "is over the 4" in (await page.next("note"))["text"]
        await page.send("set_k", k=None)
        await page.until(lambda message: message.get("k_mode") == "auto")


@pytest.mark.parametrize(
    "setting", ["server.http_admin=false", "server.admin_listen=", "admission.trust_user_names=true"]
)
async def test_without_proof_nobody_changes_the_server(setting: str) -> None:
    async with run_server(make_config(HTTP, PAGE_ADMIN, setting), make_engine) as server, opened(server) as page:
        figures = await page.next("figures")
        assert figures["k_locked"]
        assert figures["editors_locked"] == figures["k_locked"]
        for message in ({"type_": "set_k", "k": 1}, {"type_": "simulate", "on": True}):
            await page.send(**message)
            assert (await page.next("note"))["text"] == figures["k_locked"]
        after = await page.next("figures")
        assert (after["k"], after["editors_left_s"]) == (MAX_K, 0)


async def test_behind_a_proxy_nobody_changes_the_server(server: RunningServer) -> None:
    async with opened(server, **{"X-Forwarded-For": "192.0.2.1"}) as page:
        assert "without a proxy" in (await page.next("figures"))["k_locked"]
        await page.send("set_k", k=1)
        assert "without a proxy" in (await page.next("note"))["text"]
    async with opened(server) as page:
        assert (await page.next("figures"))["k"] == MAX_K


def simulated_editors() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "simulated-editors" in " ".join(each.cmdline())]


async def test_simulated_editors_type_until_they_are_stopped(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPLETION_SERVER_ENGINE_PARENT", str(os.getpid()))  # as a server with vLLM sets it
    async with opened(server) as page, opened(server) as other:
        assert (await page.next("figures"))["editors_locked"] == ""
        await page.send("simulate", on=True)
        await other.send("simulate", on=True)  # they type already, so nothing changes
        await other.until(lambda message: message.get("sessions") == 52 and message["answered"] > 0)
        (process,) = simulated_editors()
        workers = process.children(recursive=True)
        assert workers
        await other.send("simulate", on=False)
        ended = await other.until(lambda message: message.get("sessions") == 2)
        assert (ended["editors_left_s"], ended["editors_failure"]) == (0, "")
        await eventually(lambda: not any(map(runs, (process, *workers))))


async def test_simulated_editors_end_with_the_server() -> None:
    async with run_server(make_config(HTTP, PAGE_ADMIN), make_engine) as server, opened(server) as page:
        await page.send("simulate", on=True)
        await page.until(lambda message: message.get("answered", 0) > 0)
        (process,) = simulated_editors()
        processes = [process, *process.children(recursive=True)]
    await eventually(lambda: not any(map(runs, processes)))


async def test_the_page_waits_for_a_server_that_needs_a_name() -> None:
    async with run_server(make_config(HTTP, "admission.require_user=true"), make_engine) as server:
        async with opened(server) as page:
            assert await page.close_code() == 1013
        async with opened(server, **{"X-User-Id": "ann"}) as page:
            await page.send("ask", number=1, prefix="x = ")
            assert (await page.answer(1))[0] == "alpha beta"
