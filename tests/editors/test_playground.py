"""The page at `/` in a real Chromium, against a real server: what a user types, sees, accepts and dismisses.

PLAYGROUND_PICTURE=FILE takes the README's picture.
"""

import asyncio
import itertools
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.authentication import LONG_PAST_S, KnownCallers, verified
from tests.support.browser import Page, driven
from tests.support.http_clients import HTTP, PAGE_ADMIN, post
from tests.support.server import RunningServer, eventually, make_config, run_server
from tests.support.vocabularies import embedded

MAX_K = 4
TIMES = ServiceTimes(
    prefill_base_s=0.012, prefill_per_token_s=0.0002, decode_base_s=0.006, decode_per_seq_s=0.0004, draft_s=0.0005
)
CONTINUATIONS = {
    '"""Return the arithmetic mean of values."""\n    ': "total = sum(values)\n    return total / len(values)\n",
    "first = ": "mean(values[:3])\n",
    "again = ": "median(values)\n",
    "other": "wise = sorted(values)\n",
    "run(...args: T): void {\n    ": "this.cancel();\n    this.#timer = setTimeout(this.call, this.waitMs, ...args);\n",
    "Push(item T) {\n\t": "q.mu.Lock()\n\tdefer q.mu.Unlock()\n\tq.items = append(q.items, item)\n",
}
MEAN = "total = sum(values)\n    return total / len(values)"
WHY = "document.querySelector('#sign-in-why').textContent"
COLOUR = "getComputedStyle(document.body).backgroundColor"

NO_ANSWER = "Failed to load resource: "
"""Begins what the browser itself says of a refused token, of a superseded stream and after the end of the server."""

pytestmark = [pytest.mark.timeout(240), pytest.mark.full]


class Playground(Page):
    """The page, and what a user sees of it."""

    async def open(self, address: str) -> None:
        """Open the page, and wait until it is connected."""
        await self.do("open", url=f"http://{address}/")
        await self.until("document.querySelector('#connection').dataset.state === 'connected'")
        await self.until("document.querySelector('#sessions').textContent !== '–'")

    async def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for each in keys:
            await self.do("press", keys=each)

    async def type(self, text: str) -> None:
        """Type a text as fast as a quick user does."""
        await self.do("type", text=text, delay=60)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return await self.do("evaluate", expression=expression)

    async def until(self, expression: str) -> None:
        """Wait until an expression in the page is true."""
        await self.do("until", expression=expression)

    async def ghost(self, text: str) -> None:
        """Wait until the ghost text is this one, "" for none."""
        await self.until(f"(document.querySelector('.ghost')?.textContent ?? '') === {json.dumps(text)}")

    async def line(self, text: str) -> None:
        """Wait until the cursor's line is this one, without the ghost text."""
        own = "[...document.querySelector('.cm-activeLine').childNodes].filter((each) => each.className !== 'ghost')"
        await self.until(f"{own}.map((each) => each.textContent).join('') === {json.dumps(text)}")


def continuation(request: GenerationRequest) -> tuple[str, ...]:
    """Continue the text before the cursor as CONTINUATIONS says; nothing else has a completion."""
    prompt = embedded().decode(list(request.prompt_token_ids), skip_special_tokens=False) + request.begins_with
    before = re.sub(r"<\|fim_suffix\|>.*<\|fim_middle\|>", "", prompt, flags=re.DOTALL)
    text = next((text for end, text in CONTINUATIONS.items() if before.endswith(end)), "\n")
    return tuple(re.findall(r"\s*\S+|\s+", text))


def make_engine() -> ScriptedEngine:
    return ScriptedEngine(continuation, TIMES, num_speculative_tokens=MAX_K, acceptance_rate=0.8)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with run_server(make_config(HTTP, PAGE_ADMIN), make_engine) as running:
        yield running


@pytest_asyncio.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Playground]:
    """Yield a tab, which must have no warning in its console in the end: none of the page's policy, no exception."""
    async with driven(tmp_path, "playground_page.mjs") as driver:
        found = Playground(driver)
        yield found
        warnings = await found.do("warnings")
        assert not [each for each in warnings if not each.startswith(NO_ANSWER)]


async def new_line(tab: Playground, text: str) -> None:
    """Go to the end of the document's text and type on a new line."""
    await tab.press("Control+End", "Enter")
    await tab.type(text)


async def test_a_user_types_sees_accepts_and_dismisses(server: RunningServer, tab: Playground) -> None:
    await tab.open(server.ready.http_address)
    await tab.press("Alt+\\")
    await tab.ghost(MEAN)
    assert await tab.evaluate("document.querySelector('#status').textContent") == f"Suggestion: {MEAN}"
    assert await tab.evaluate("document.querySelector('#reason').textContent") == "stop"
    assert float(await tab.evaluate("document.querySelector('#total').textContent")) > 0
    await tab.press("Tab")
    await tab.ghost("")
    await tab.line("    return total / len(values)")
    await tab.press("Control+z")
    await tab.line("    ")

    await new_line(tab, "first = ")
    await tab.ghost("mean(values[:3])")
    await tab.type("me")  # typed along: the rest stays, without a request
    await tab.ghost("an(values[:3])")
    await tab.press("Control+ArrowRight")
    await tab.line("first = mean")
    await tab.ghost("(values[:3])")
    await tab.press("Control+ArrowRight", "Control+ArrowRight")
    await tab.line("first = mean(values")
    await tab.press("Tab")
    await tab.line("first = mean(values[:3])")

    await new_line(tab, "again = ")
    await tab.ghost("median(values)")
    await tab.press("Escape")
    await tab.ghost("")
    await tab.line("again = ")
    await tab.press("Backspace")
    await tab.type(" ")  # rejected here, so nothing comes back
    await new_line(tab, "other")
    await tab.ghost("wise = sorted(values)")
    for kind in ("shown", "accepted", "accepted_word", "rejected"):
        await eventually(lambda kind=kind: server.count("completion_feedback_total", kind=kind) > 0)
    assert server.count("completion_feedback_total", kind="refused") == 0
    assert server.count("completion_accepted_characters_total") == len(MEAN) + len("an(values[:3])")


async def test_the_languages_have_texts_of_their_own(server: RunningServer, tab: Playground) -> None:
    await tab.open(server.ready.http_address)
    await tab.press("Escape", "Shift+Tab", "Shift+Tab")  # after Escape, Tab leaves the editor
    assert await tab.evaluate("document.activeElement.id") == "language"
    for file, ghost in (("debounce.ts", "this.cancel();"), ("queue.go", "q.mu.Lock()")):
        await tab.press("ArrowDown")
        await tab.until(f"document.querySelector('#file').textContent === '{file}'")
        await tab.press("Tab", "Tab", "Alt+\\")
        await tab.until(f"document.querySelector('.ghost')?.textContent.startsWith('{ghost}')")
        await tab.press("Escape", "Escape", "Shift+Tab", "Shift+Tab")


async def test_an_operator_sets_k_by_the_keyboard_alone(server: RunningServer, tab: Playground) -> None:
    await tab.open(server.ready.http_address)
    seen = []
    await tab.press("Escape")  # after it, Tab leaves the editor
    for _ in range(2):
        await tab.press("Tab")
        seen.append(await tab.evaluate("document.activeElement.id"))
        assert await tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert seen == ["k", "k-auto"]
    await tab.press("Shift+Tab", "ArrowLeft")
    await tab.until("document.querySelector('#k-mode').textContent === 'fixed'")
    await tab.until(f"document.querySelector('#k-now').textContent === '{MAX_K - 1}'")
    await tab.press("Tab", "Enter")
    await tab.until("document.querySelector('#k-mode').textContent === 'auto'")


async def test_a_user_signs_in_by_the_keyboard_and_the_tab_keeps_the_token(tab: Playground) -> None:
    known = KnownCallers({"ann": verified("ann"), "brief": verified("ann", expires_at=LONG_PAST_S)})
    async with run_server(make_config(HTTP, PAGE_ADMIN), make_engine, known) as server:
        address = server.ready.http_address
        await tab.do("open", url=f"http://{address}/")
        await tab.until("document.activeElement.id === 'token'")
        assert await tab.evaluate(WHY) == "This server needs a token."
        await tab.type("forged")
        await tab.press("Enter")
        await tab.until(f"{WHY}.includes('the token is unknown or has expired')")
        await tab.type("brief")
        await tab.press("Enter")
        await tab.until("document.querySelector('#sign-in').hidden")
        await tab.until("document.activeElement.closest('.cm-editor') !== null")
        await tab.press("Alt+\\")
        await tab.ghost(MEAN)
        assert await tab.evaluate("document.querySelector('#k').disabled")
        assert await tab.evaluate("document.querySelector('#k-auto').disabled")
        assert "scope admin" in await tab.evaluate("document.querySelector('#k-why').textContent")

        known.now = LONG_PAST_S
        await tab.until("!document.querySelector('#sign-in').hidden")
        assert await tab.evaluate("document.querySelector('#connection').dataset.state") == "away"
        assert await tab.evaluate("document.activeElement.closest('.cm-editor') !== null")  # the user types on
        assert await tab.evaluate("sessionStorage.length") == 0
        await tab.evaluate("document.querySelector('#token').focus()")
        await tab.type("ann")
        await tab.press("Enter")
        await tab.until("document.querySelector('#sign-in').hidden")
        await tab.open(address)  # signs in again by itself
        kept = "[location.href, document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)]"
        *elsewhere, session = await tab.evaluate(kept)
        assert "ann" in session
        assert "ann" not in "".join(elsewhere)


async def test_dark_and_light_follow_the_system_and_the_switch(server: RunningServer, tab: Playground) -> None:
    await tab.open(server.ready.http_address)
    dark = await tab.evaluate(COLOUR)
    await tab.do("colours", scheme="light")
    await tab.until(f"{COLOUR} !== '{dark}'")
    light = await tab.evaluate(COLOUR)
    await tab.press("Escape", "Shift+Tab", "Enter")
    await tab.until(f"{COLOUR} === '{dark}'")
    await tab.open(server.ready.http_address)  # the choice is kept
    assert await tab.evaluate(COLOUR) == dark
    await tab.press("Escape", "Shift+Tab", "Enter")
    await tab.until(f"{COLOUR} === '{light}'")


async def test_the_page_reconnects_when_the_server_is_back(tab: Playground) -> None:
    async with run_server(make_config(HTTP), make_engine) as server:
        address = server.ready.http_address
        await tab.open(address)
    await tab.until("document.querySelector('#connection').dataset.state === 'away'")
    async with run_server(make_config(f"server.http_listen={address}"), make_engine):
        await tab.until("document.querySelector('#connection').dataset.state === 'connected'")
        await tab.press("Alt+\\")
        await tab.ghost(MEAN)


async def test_the_load_of_others_is_seen_live(server: RunningServer, tab: Playground, tmp_path: Path) -> None:
    await tab.open(server.ready.http_address)
    picture = os.environ.get("PLAYGROUND_PICTURE")
    async with typing(server):
        await tab.until("Number(document.querySelector('#answered').textContent) > 0")
        await tab.press("Alt+\\")
        await tab.ghost(MEAN)
        if picture:
            await tab.do("pause", ms=30_000)
            await tab.press("Escape", "Alt+\\")  # once more, so that the prompt is cached
            await tab.ghost(MEAN)
            await tab.do("pause", ms=1_000)
        await tab.do("screenshot", path=picture or str(tmp_path / "playground.png"))


@asynccontextmanager
async def typing(server: RunningServer) -> AsyncIterator[None]:
    """Let editors ask for completions."""

    async def one(user: str) -> None:
        for i in itertools.count():
            body = {"prompt": f"# {user}\n" * 40 + f"n = {i}\nfirst = ", "suffix": "\n", "user": user, "stream": True}
            await post(server, "/v1/completions", body)
            await asyncio.sleep(0.4)

    editors = [asyncio.create_task(one(f"user_{i}")) for i in range(20)]
    try:
        yield
    finally:
        for each in editors:
            each.cancel()
        await asyncio.wait(editors)
