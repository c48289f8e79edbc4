"""Typing through: which requests go on with the generation of an older one, and with what text."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.core.outcome import FinishReason
from completion_server.core.request import Mode, Sampling, Snippet, Trigger
from completion_server.streaming.text import TextRules
from tests.support.examples import examples
from tests.support.services import FOUR_SLOTS, REQUEST, WORDS, RunningService, Script, in_virtual_time, read

STOP, SUPERSEDED = FinishReason.STOP, FinishReason.SUPERSEDED


@pytest.mark.parametrize(("typed", "is_continued"), [("ab", True), ("abcdef", False)])
def test_a_reattach_needs_half_of_the_requests_tokens_left(typed: str, is_continued: bool) -> None:
    script = Script(old=("ab", "cd", "ef", "gh"), new=("ab", "cd", "ef", "gh"))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ", max_tokens=4)
        await asyncio.sleep(0.035)
        new = await read(running.open("new", "x = " + typed, max_tokens=4))
        assert new.reason is FinishReason.LENGTH
        assert new.text == ("cdefgh" if is_continued else "abcdefgh")

    in_virtual_time(scenario, script.engine)
    assert script.asked == (["old"] if is_continued else ["old", "new"])


def test_a_seed_repeats_an_answer_while_the_user_types_along() -> None:
    script = Script(old=WORDS, new=("fresh",))
    sampling = Sampling(temperature=0.8, seed=7)

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ", sampling=sampling)
        await asyncio.sleep(0.025)
        assert (await read(running.open("new", "x = al", sampling=sampling))).text == "fresh"

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old", "new"]


@pytest.mark.parametrize(
    "changes",
    [
        {"suffix": ")"},
        {"mode": Mode.SINGLE_LINE},
        {"max_tokens": 9},
        {"sampling": Sampling(0.5, 1)},
        {"stop": (";",)},
        {"snippets": (Snippet("a", "b"),)},
        {"document_uri": "b.py"},
        {"language_id": "ruby"},
        {"use_completion_cache": False},
    ],
)
def test_a_request_with_other_parameters_does_not_reattach(changes: dict[str, Any]) -> None:
    script = Script(old=WORDS, new=("fresh",))

    async def scenario(running: RunningService) -> None:
        older = running.open("old", "x = ")
        await asyncio.sleep(0.025)
        new = await read(running.open("new", "x = al", **changes))
        assert (new.text, new.reason, (await read(older)).reason) == ("fresh", STOP, SUPERSEDED)

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old", "new"]


def test_typing_through_can_be_switched_off() -> None:
    script = Script(old=WORDS, new=("fresh",))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        await asyncio.sleep(0.025)
        assert (await read(running.open("new", "x = al"))).text == "fresh"

    in_virtual_time(scenario, script.engine, scheduling=dataclasses.replace(FOUR_SLOTS, typing_through=False))


def test_a_request_after_a_typed_line_break_does_not_reattach() -> None:
    script = Script(old=("alpha", "()"), new=("fresh",))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ", mode=Mode.SINGLE_LINE)
        await asyncio.sleep(0.025)
        new = await read(running.open("new", "x = alpha()\n", mode=Mode.SINGLE_LINE))
        assert new.text == "fresh"

    in_virtual_time(scenario, script.engine)


@pytest.mark.parametrize(
    ("words", "typed", "changes", "expected"),
    [
        (("al", "pha", " beta\n", "gamma"), "al", {"mode": Mode.SINGLE_LINE}, "pha beta"),
        (("f", "(a", "); x", "; y"), "f(", {"stop": (";",)}, "a)"),
        (("f;", "(a", "); x"), "f;", {"stop": (";",)}, "fresh"),  # a stop that was typed had ended the older
        (("al", "pha  ", "\n\n"), "a", {}, "lpha"),  # blanks at the end
        (("al", "pha)", "x"), "al", {"suffix": ")", "mode": Mode.SINGLE_LINE}, "pha"),  # no repetition
        (("é", "漢🙂", "ü"), "é漢", {}, "🙂ü"),
        (("a\r", "\n  b", "\r\n  c", "\r\nd"), "a\r\n", {"prefix_end": ":\n  "}, "  b\r\n  c"),  # a block's end
    ],
)
def test_the_text_rules_apply_from_the_new_cursor_on(
    words: Sequence[str], typed: str, changes: dict[str, Any], expected: str
) -> None:
    script = Script(old=words, new=("fresh",))
    prefix = "if x" + changes.pop("prefix_end", "")

    async def scenario(running: RunningService) -> None:
        running.open("old", prefix, **changes)
        await asyncio.sleep(0.025)
        new = await read(running.open("new", prefix + typed, **changes))
        assert (new.text, new.reason) == (expected, STOP)

    in_virtual_time(scenario, script.engine)


def answer_of(text: str, *, is_cut: bool, **request: Any) -> tuple[str, FinishReason]:
    """Return what the text rules send of a whole generation, and why the answer ends."""
    rules = TextRules(dataclasses.replace(REQUEST, **request))
    sent = rules.feed(text)
    if rules.is_done:
        return sent, STOP
    return sent + rules.finish(is_cut=is_cut), FinishReason.LENGTH if is_cut else STOP


WORD = st.text("ab(é🙂\n ;", min_size=1, max_size=3) | st.sampled_from(("1.0", " /", " (", "a + b", ")"))


@settings(max_examples=examples(2))
@given(
    words=st.lists(WORD, min_size=1, max_size=8),
    num_typed=st.integers(0, 12),
    slip=st.sampled_from(("", "", "", "q")),
    num_steps=st.integers(0, 8),
    fields=st.fixed_dictionaries(
        {
            "mode": st.sampled_from(Mode),
            "suffix": st.sampled_from(("", ")", "\nb")),
            "stop": st.sampled_from(((), (";",), ("b(",))),
            "max_tokens": st.sampled_from((4, 16)),
        }
    ),
)
def test_a_reattached_answer_is_that_of_a_generation_of_its_own(
    words: list[str], num_typed: int, slip: str, num_steps: int, fields: dict[str, Any]
) -> None:
    fresh = ("fr", "e\n", "sh")
    script = Script(old=words, new=fresh)
    is_cut = len(words) >= fields["max_tokens"]
    whole = "".join(words[: fields["max_tokens"]])
    typed = whole[:num_typed] + slip

    async def scenario(running: RunningService) -> None:
        older = running.open("old", "x = ", **fields)
        if num_steps:
            await asyncio.sleep(0.01 * num_steps + 0.005)
        newer = running.open("new", "x = " + typed, **fields)
        old, new = await read(older), await read(newer)
        is_ended_line = fields["mode"] is Mode.SINGLE_LINE and "\n" in typed
        fits = (
            old.reason is SUPERSEDED
            and not is_ended_line
            and whole.startswith(typed)
            and not (is_cut and whole == typed)
        )
        is_typed_through = "new" not in script.asked
        assert fits or not is_typed_through
        leaves_half = len(typed) < fields["max_tokens"] / 2  # a token has a character or more
        assert is_typed_through or not (fits and leaves_half)
        assert script.asked == ["old"] * ("old" in script.asked) + ["new"] * (not is_typed_through)
        text, was_cut = (whole[len(typed) :], is_cut) if is_typed_through else ("".join(fresh), False)
        expected = answer_of(text, is_cut=was_cut, prefix="x = " + typed, **fields)
        assert (new.text, new.reason) == expected
        assert len(running.recorder.reattached) - len(running.recorder.diverged) == is_typed_through

    in_virtual_time(scenario, script.engine)


def test_a_typed_request_reattaches_to_a_prefetch_but_not_the_reverse() -> None:
    script = Script(prefetch=WORDS, another=("fresh",))

    async def scenario(running: RunningService) -> None:
        ahead = running.open("prefetch", "x = ", trigger=Trigger.PREFETCH)
        await asyncio.sleep(0.025)
        typed = running.open("typed", "x = a", trigger=Trigger.EXPLICIT)
        assert (await read(ahead)).reason is SUPERSEDED
        another = running.open("another", "x = al", trigger=Trigger.PREFETCH)
        assert running.load == (2, 2, 0)
        assert ((await read(typed)).text, (await read(another)).text) == ("lpha beta", "fresh")

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["prefetch", "another"]


def test_a_running_prefetch_is_reattached_although_an_older_typed_request_waits() -> None:
    script = Script(busy=["b"] * 8, prefetch=WORDS)

    async def scenario(running: RunningService) -> None:
        running.open("prefetch", "x = f(", trigger=Trigger.PREFETCH)
        waiting = running.open("waits", "x = f")
        assert running.load == (2, 1, 1)
        new = await read(running.open("new", "x = f(a"))
        assert (new.text, (await read(waiting)).reason) == ("lpha beta", SUPERSEDED)

    in_virtual_time(scenario, script.engine, scheduling=dataclasses.replace(FOUR_SLOTS, max_slots=1))
    assert script.asked == ["prefetch"]
