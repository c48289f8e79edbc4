"""Answers of a whole service: requests that type along with a generation, and equal requests that share one."""

import asyncio
import dataclasses
import gc
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_server.core.clock import Deadline, MonotonicClock
from completion_server.core.events import AnswerClosed, RequestEnded
from completion_server.core.outcome import End, FinishReason, Usage
from completion_server.core.request import Caller, Mode, Sampling
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.settings import CacheScope
from completion_server.requests.limits.settings import AdmissionSettings
from completion_server.text.rules.text import TextRules
from tests.support.constants import with_constants
from tests.support.examples import examples
from tests.support.server import eventually
from tests.support.services import (
    FOUR_SLOTS,
    REQUEST,
    WORDS,
    Prompts,
    RunningService,
    Script,
    in_virtual_time,
    read,
    running_service,
)

STOP, SUPERSEDED = FinishReason.STOP, FinishReason.SUPERSEDED


def test_typing_generated_text_gets_the_rest_of_it() -> None:
    script = Script(old=WORDS)

    async def scenario(running: RunningService) -> None:
        older = running.open("old", "x = ")
        await asyncio.sleep(0.035)
        newer = running.open("new", "x = al")
        assert running.load == (1, 1, 0)
        old, new = await read(older), await read(newer)
        assert (old.reason, old.end.usage) == (SUPERSEDED, Usage())
        assert (new.text, new.reason) == ("pha beta", STOP)
        assert new.end.usage == Usage(prompt_tokens=3, completion_tokens=5)
        assert running.recorder.reattached == [2]
        assert running.recorder.marks["new"].first_output == pytest.approx(0.035)

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old"]


def test_an_answer_without_text_is_told_from_one_with_text() -> None:
    script = Script(whole=WORDS, blank=("\n",))

    async def scenario(running: RunningService) -> None:
        assert (await read(running.open("whole", "x = ", mode=Mode.SINGLE_LINE))).text
        blank = await read(running.open("blank", "y = ", mode=Mode.SINGLE_LINE))
        assert (blank.text, blank.reason) == ("", STOP)
        assert running.recorder.marks["blank"].first_output is not None
        ended = [each for each in running.recorder.recorded if isinstance(each, RequestEnded)]
        assert {each.request.id: each.has_text for each in ended} == {"whole": True, "blank": False}

    in_virtual_time(scenario, script.engine)


SLOW_LINES = tuple(piece for i in range(50) for piece in (f"\n    a{i}", f" = {i}"))
SLOW_LINE = tuple(f" a{i} +" for i in range(100))


@pytest.mark.parametrize("token_s", [0.01, 0.06])
@pytest.mark.parametrize(
    ("prefix", "words", "reason"),
    [("def f():", SLOW_LINES, FinishReason.LENGTH), ("x =", SLOW_LINE, FinishReason.DEADLINE)],
)
def test_near_its_deadline_an_answer_is_the_lines_that_are_whole(
    prefix: str, words: Sequence[str], reason: FinishReason, token_s: float
) -> None:
    async def scenario(running: RunningService) -> None:
        deadline = Deadline.after(0.5, running.service.now())
        answer = await read(running.open("slow", prefix, max_tokens=100, deadline=deadline))
        ended = running.recorder.marks["slow"].ended
        assert ended is not None
        assert (answer.reason, ended < deadline.at) == (reason, reason is FinishReason.LENGTH)
        if reason is FinishReason.LENGTH:
            assert ended > 0.8 * deadline.at
            assert answer.text
            assert answer.text == "".join(words[: answer.text.count(" = ") * 2])

    times = ServiceTimes(prefill_base_s=0.02, decode_base_s=token_s)
    in_virtual_time(scenario, lambda: ScriptedEngine(Script(slow=words), times))


def test_a_deadline_ends_one_reader_of_a_generation_and_leaves_it_to_the_other() -> None:
    script = Script(near=SLOW_LINES, far=SLOW_LINES)

    async def scenario(running: RunningService) -> None:
        now = running.service.now()
        deadlines = {"near": Deadline.after(0.3, now), "far": Deadline.after(60.0, now)}
        near, far = (
            running.open(name, "def f():", caller=Caller("u", name), max_tokens=120, deadline=deadline, lane=name)
            for name, deadline in deadlines.items()
        )
        cut, whole = await asyncio.gather(read(near), read(far))
        assert (cut.reason, whole.reason, whole.text) == (FinishReason.LENGTH, STOP, "".join(SLOW_LINES))
        assert cut.text
        assert whole.text.startswith(cut.text)

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["near"]


def test_an_answer_is_closed_once_with_the_time_at_which_its_end_was_written() -> None:
    script = Script(written=("fresh",), left=("fresh",))

    async def scenario(running: RunningService) -> None:
        written, left = running.open("written", "x = "), running.open("left", "y = ")
        await asyncio.sleep(0.5)
        assert not [each for each in running.recorder.recorded if isinstance(each, AnswerClosed)]
        for completion in (written, left):
            assert isinstance(completion.take_nowait(), End)
        written.note_end_written()
        for completion in (written, left, left):
            completion.leave()
        closed = [each for each in running.recorder.recorded if isinstance(each, AnswerClosed)]
        assert [each.ended.request.id for each in closed] == ["written", "left"]
        ended_at = running.recorder.marks["written"].ended
        assert ended_at is not None
        assert [each.stream_s for each in closed] == [running.service.now() - ended_at, None]

    in_virtual_time(scenario, script.engine)


def test_each_further_key_reattaches_and_so_does_a_step_back() -> None:
    script = Script(old=WORDS)

    async def scenario(running: RunningService) -> None:
        answers = [running.open("old", "x = ")]
        for at, typed in enumerate(("a", "al", "alpha b", "alpha", "alph")):
            await asyncio.sleep(0.006)
            answers.append(running.open(f"new{at}", "x = " + typed))
        *olds, last = [await read(each) for each in answers]
        assert [(old.reason, old.end.usage) for old in olds] == [(SUPERSEDED, Usage())] * 5
        assert (last.text, last.end.usage.completion_tokens) == ("a beta", 5)

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old"]


async def test_a_generation_without_a_prompt_can_be_reattached() -> None:
    script, prompts = Script(old=WORDS), Prompts(gate=threading.Event())
    assert prompts.gate is not None
    long = "x" * 20_000
    async with running_service(script.engine, MonotonicClock(), prompts=prompts) as running:
        running.open("old", long)
        await eventually(lambda: bool(prompts.threads), poll_s=0.001)
        newer = running.open("new", long + "alph")
        assert running.load == (1, 1, 0)
        prompts.gate.set()
        assert (await read(newer)).text == "a beta"
    assert (script.asked, prompts.built) == (["old"], ["old"])


@pytest.mark.parametrize("typed", ["al", "alphabet", "alphas", "q", "close"])
def test_an_ended_request_is_freed_by_reference_counting_alone(typed: str) -> None:
    script = Script(old=WORDS, new=("fresh",))
    held: dict[str, Any] = {}

    async def scenario(running: RunningService) -> None:
        gc.disable()
        older = running.open("old", "x = ")
        await asyncio.sleep(0.025)
        newer = running.open("new", "x = " + typed)
        if typed == "close":
            newer.cancel()
        await read(older)
        await read(newer)
        await running.service.runner.wait_idle()
        held.update(old=weakref.ref(older), new=weakref.ref(newer))
        del older, newer
        await asyncio.sleep(1.0)
        assert (held["old"](), held["new"]()) == (None, None)

    try:
        in_virtual_time(scenario, script.engine)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("words", "typed", "changes", "expected"),
    [
        (("al", "pha", " beta\n", "gamma"), "al", {"mode": Mode.SINGLE_LINE}, "pha beta"),
        (("f", "(a", "); x", "; y"), "f(", {"stop": (";",)}, "a)"),
        (("f;", "(a", "); x"), "f;", {"stop": (";",)}, "fresh"),  # a stop that was typed had ended the older
        (("al", "pha)", "x"), "al", {"suffix": ")", "mode": Mode.SINGLE_LINE}, "pha"),  # no repetition
        (("a\r", "\n  b", "\r\n  c", "\r\nd"), "a\r\n", {"prefix": "if x:\n  "}, "  b\r\n  c"),  # a block's end
    ],
)
def test_the_text_rules_apply_from_the_new_cursor_on(
    words: Sequence[str], typed: str, changes: dict[str, Any], expected: str
) -> None:
    script = Script(old=words, new=("fresh",))
    prefix = changes.pop("prefix", "x = ")

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


BY_SESSION = dataclasses.replace(FOUR_SLOTS, lane="session")
ANN, TWIN = Caller("ann", "one"), Caller("ann", "two")
BOB, EVE = Caller("bob", "one"), Caller("eve", "one", tenant="other")


@pytest.mark.parametrize(("is_shared", "third"), [(True, FinishReason.STOP), (False, FinishReason.SHED)])
def test_tokens_are_charged_once(is_shared: bool, third: FinishReason) -> None:
    """A generation costs 8 tokens of a burst of 10: a second one puts the user into debt."""
    script = Script(first=WORDS, second=WORDS, third=WORDS)
    admission = with_constants(AdmissionSettings(user_requests_per_s=0, user_tokens_per_s=10), token_burst_s=1)

    async def scenario(running: RunningService) -> None:
        requests = [running.open(name, "x = ", caller=caller) for name, caller in (("first", ANN), ("second", TWIN))]
        answers = [await read(each) for each in requests]
        assert [each.end.usage.completion_tokens for each in answers] == [5, 5]
        assert [each.end.usage.is_shared for each in answers] == [False, is_shared]
        assert (await read(running.open("third", "y = ", caller=ANN))).reason is third

    settings = dataclasses.replace(BY_SESSION, single_flight=is_shared)
    in_virtual_time(scenario, script.engine, scheduling=settings, admission=admission)


@pytest.mark.parametrize(
    ("changes", "scheduling"),
    [({"suffix": ")"}, {}), ({"use_completion_cache": False}, {}), ({}, {"typing_through": False})],
)
def test_a_request_that_asks_for_something_else_does_not_reattach(
    changes: dict[str, Any], scheduling: dict[str, Any]
) -> None:
    script = Script(old=WORDS, new=("fresh",))

    async def scenario(running: RunningService) -> None:
        older = running.open("old", "x = ")
        await asyncio.sleep(0.025)
        new = await read(running.open("new", "x = al", **changes))
        assert (new.text, new.reason, (await read(older)).reason) == ("fresh", STOP, SUPERSEDED)

    in_virtual_time(scenario, script.engine, scheduling=dataclasses.replace(FOUR_SLOTS, **scheduling))


UNCACHED, SAMPLED, SEEDED = (
    {"use_completion_cache": False},
    {"sampling": Sampling(0.8)},
    {"sampling": Sampling(0.8, seed=7)},
)


@pytest.mark.parametrize(
    ("first", "second", "cache_scope", "scheduling", "is_shared"),
    [
        ({}, {}, "user", {}, True),
        ({}, {}, "user", {"single_flight": False}, False),
        ({}, {"caller": ANN}, "user", {"lane": "user", "supersede": False}, True),
        (UNCACHED, {}, "user", {}, False),
        ({}, UNCACHED, "user", {}, False),
        (SEEDED, SEEDED, "user", {}, True),
        (SAMPLED, SAMPLED, "user", {}, False),
        ({}, {"caller": BOB}, "user", {}, False),
        ({}, {"caller": BOB}, "tenant", {}, True),
        ({}, {"caller": EVE}, "tenant", {}, False),
        ({}, {"prefix": "y = "}, "user", {}, False),
        ({}, {"suffix": ")"}, "user", {}, False),
    ],
)
def test_equal_requests_of_callers_that_share_the_prefix_cache_share_a_generation(
    first: dict[str, Any], second: dict[str, Any], cache_scope: CacheScope, scheduling: dict[str, Any], is_shared: bool
) -> None:
    script = Script(first=WORDS, second=WORDS)

    async def scenario(running: RunningService) -> None:
        requests: dict[str, dict[str, Any]] = {
            "first": {"prefix": "x = ", "caller": ANN} | first,
            "second": {"prefix": "x = ", "caller": TWIN} | second,
        }
        completions = [running.open(name, **fields) for name, fields in requests.items()]
        answers = [await read(each) for each in completions]
        assert [(answer.text, answer.reason) for answer in answers] == [("alpha beta", STOP)] * 2

    settings = dataclasses.replace(BY_SESSION, **scheduling)
    in_virtual_time(scenario, script.engine, scheduling=settings, cache_scope=cache_scope)
    assert script.asked == (["first"] if is_shared else ["first", "second"])
