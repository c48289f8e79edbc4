"""The page's WebSocket with authentication on: its token, its scopes, and its end."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from completion_server.core.credential import Scope
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.authentication import LONG_PAST_S, KnownCallers, verified
from tests.support.http_clients import HTTP, PAGE_ADMIN
from tests.support.page_sockets import Page, opened
from tests.support.server import RunningServer, eventually, make_config, run_server

MAX_K = 4


def make_engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: ("alpha", " beta", "\n"), num_speculative_tokens=MAX_K)


@pytest.fixture
def known() -> KnownCallers:
    return KnownCallers(
        {
            "ann": verified("ann"),
            "brief": verified("ann", expires_at=LONG_PAST_S),
            "bob": verified("bob"),
            "complete": verified("carl", Scope.COMPLETE),
            "feedback": verified("dora", Scope.FEEDBACK),
            "admin": verified("emma", Scope.COMPLETE, Scope.ADMIN),
        }
    )


@pytest_asyncio.fixture
async def server(known: KnownCallers) -> AsyncIterator[RunningServer]:
    async with run_server(make_config(HTTP, PAGE_ADMIN), make_engine, known) as running:
        yield running


async def sign_in(page: Page, token: str) -> None:
    assert (await page.next("sign_in"))["reason"] == ""
    await page.send("token", token=token)


async def test_a_page_with_a_token_is_served(server: RunningServer) -> None:
    async with opened(server) as page:
        await sign_in(page, "ann")
        await page.next("about")
        await page.send("ask", number=1, prefix="x = ")
        assert (await page.answer(1))[0] == "alpha beta"
        await page.send("report", number=1, kind="shown")
        await eventually(lambda: server.count("completion_feedback_total", kind="shown") == 1)


async def test_a_proxy_may_bring_the_token(server: RunningServer) -> None:
    async with opened(server, Authorization="Bearer ann") as page:
        await page.next("about")


@pytest.mark.parametrize(
    ("token", "code", "reason"),
    [
        ("forged", 4401, "the token is unknown or has expired"),
        ("feedback", 4403, "key id-of-dora: lacks the scope complete"),
    ],
)
async def test_a_refused_token_ends_the_page_with_the_reason(
    server: RunningServer, token: str, code: int, reason: str
) -> None:
    async with opened(server) as page:
        await sign_in(page, token)
        assert await page.closed() == (code, reason)
    assert server.count("completion_live_sessions") == 0


async def test_nothing_comes_before_the_token(server: RunningServer) -> None:
    async with opened(server) as page:
        await page.next("sign_in")
        await page.send("ask", number=1, prefix="x = ")
        assert await page.closed() == (4401, "a token must come first")


async def test_a_page_without_a_token_is_not_waited_for(known: KnownCallers) -> None:
    config = make_config(HTTP, "server.receive_timeout_s=0.2")
    async with run_server(config, make_engine, known) as server, opened(server) as page:
        assert await page.closed() == (4401, "no token came within 0.2 s")


async def test_a_revoked_token_ends_the_page_and_its_session(server: RunningServer, known: KnownCallers) -> None:
    async with opened(server) as page:
        await sign_in(page, "ann")
        await page.next("figures")
        known.revoke("id-of-ann")
        assert await page.closed() == (4401, "key id-of-ann: was revoked")
        await eventually(lambda: server.count("completion_live_sessions") == 0)


async def test_an_expired_token_is_replaced_by_another_of_its_user(server: RunningServer, known: KnownCallers) -> None:
    async with opened(server) as page:
        await sign_in(page, "brief")
        await page.next("about")
        known.now = LONG_PAST_S
        assert (await page.next("sign_in"))["reason"] == "the token has expired"
        await page.send("token", token="ann")
        await page.next("about")
        await page.send("ask", number=1, prefix="x = ")
        assert (await page.answer(1))[0] == "alpha beta"
        await page.send("token", token="bob")
        assert await page.closed() == (
            4403, "authorization: must name the user and the tenant that opened the stream",
        )  # fmt: skip


async def test_only_the_scope_admin_changes_the_server(server: RunningServer) -> None:
    async with opened(server) as page:
        await sign_in(page, "ann")
        assert "scope admin" in (await page.next("figures"))["k_locked"]
        await page.send("set_k", k=1)
        assert "scope admin" in (await page.next("note"))["text"]
    async with opened(server, **{"X-Forwarded-For": "192.0.2.1"}) as page:
        await sign_in(page, "admin")
        figures = await page.next("figures")
        assert (figures["k"], figures["k_locked"]) == (MAX_K, "")
        assert "no token" in figures["editors_locked"]
        await page.send("set_k", k=1)
        await page.until(lambda message: message.get("k") == 1)


async def test_the_setting_keeps_the_page_from_changing_the_server(known: KnownCallers) -> None:
    async with run_server(make_config(HTTP), make_engine, known) as server, opened(server) as page:
        await sign_in(page, "admin")
        assert "server.http_admin" in (await page.next("figures"))["k_locked"]


async def test_without_the_scope_feedback_is_counted_as_refused(server: RunningServer) -> None:
    async with opened(server) as page:
        await sign_in(page, "complete")
        await page.send("ask", number=1, prefix="x = ")
        assert (await page.answer(1))[0] == "alpha beta"
        await page.send("report", number=1, kind="shown")
        await eventually(lambda: server.count("completion_feedback_total", kind="refused") == 1)
