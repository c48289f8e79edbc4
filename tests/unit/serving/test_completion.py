"""Typing through: a generation continues for the newer request while its user types the generated text."""

import asyncio
import dataclasses
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from completion_server.core.clock import MonotonicClock
from completion_server.core.outcome import FinishReason, Usage
from completion_server.engine.interface import GenerationRequest, Output
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.services import (
    FOUR_SLOTS,
    TIMES,
    WORDS,
    Prompts,
    RunningService,
    Script,
    in_virtual_time,
    read,
    running_service,
)

STOP, SUPERSEDED = FinishReason.STOP, FinishReason.SUPERSEDED


class SlowToStop(ScriptedEngine):
    """An engine that takes 50 ms to stop an aborted generation."""

    async def generate(self, job: GenerationRequest) -> AsyncGenerator[Output]:
        async with aclosing(super().generate(job)) as outputs:
            try:
                async for output in outputs:
                    yield output
            finally:
                await asyncio.sleep(0.05)


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


def test_typing_ahead_of_the_generation_gets_the_rest_when_it_comes() -> None:
    script = Script(old=WORDS)

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        await asyncio.sleep(0.025)
        newer = running.open("new", "x = alpha b")
        new = await read(newer)
        assert (new.text, new.reason) == ("eta", STOP)
        assert running.recorder.marks["new"].first_output == pytest.approx(0.04)

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old"]


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


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.02])
def test_a_generation_without_text_can_be_reattached(seconds: float) -> None:
    script = Script(old=WORDS)

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        if seconds:  # else its work has not had its first step
            await asyncio.sleep(seconds)
        new = await read(running.open("new", "x = alph"))
        assert (new.text, new.reason, new.end.usage.completion_tokens) == ("a beta", STOP, 5)

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old"]


async def test_a_generation_without_a_prompt_can_be_reattached() -> None:
    script, prompts = Script(old=WORDS), Prompts(gate=threading.Event())
    assert prompts.gate is not None
    long = "x" * 20_000
    async with running_service(script.engine, MonotonicClock(), prompts=prompts) as running:
        running.open("old", long)
        while not prompts.threads:
            await asyncio.sleep(0.001)
        newer = running.open("new", long + "alph")
        assert running.load == (1, 1, 0)
        prompts.gate.set()
        assert (await read(newer)).text == "a beta"
    assert (script.asked, prompts.built) == (["old"], ["old"])


def test_a_request_whose_generation_diverges_starts_a_new_one() -> None:
    script = Script(old=WORDS, new=("fre", "sh"))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        await asyncio.sleep(0.025)
        newer = running.open("new", "x = alphas")
        await asyncio.sleep(0.01)  # "alpha" was generated
        assert running.recorder.diverged == []
        await asyncio.sleep(0.01)  # "alpha be" was generated, at 40 ms
        assert running.recorder.diverged == [3]
        new = await read(newer)
        assert (new.text, new.reason) == ("fresh", STOP)
        assert new.end.usage.completion_tokens == 3
        marks = running.recorder.marks["new"]
        assert marks.started == pytest.approx(0.04)
        assert marks.first_output == pytest.approx(0.07)  # a step of the engine was under way

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old", "new"]


def test_a_generation_started_after_a_divergence_can_be_reattached() -> None:
    script = Script(old=WORDS, new=("fre", "sh", " start"))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        running.open("new", "x = b")
        await asyncio.sleep(0.065)  # "fre" was generated
        last = await read(running.open("last", "x = bf"))
        assert (last.text, last.end.usage.completion_tokens) == ("resh start", 4)

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old", "new"]


def test_a_generation_that_differs_already_is_aborted() -> None:
    script = Script(old=WORDS, new=("fresh",))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        await asyncio.sleep(0.025)
        newer = running.open("new", "x = b")
        assert running.load == (1, 2, 0)
        assert (await read(newer)).text == "fresh"
        assert (running.recorder.reattached, running.recorder.diverged) == ([], [])

    in_virtual_time(scenario, script.engine)


@pytest.mark.parametrize(
    ("words", "max_tokens", "typed", "typed_at_s"),
    [
        (("ab", "cd"), 2, "abcde", 0.005),  # ends by length while the user is ahead,
        (("ab", "cd"), 2, "abcd", 0.005),  # or is level
        (("ab", "cd"), 8, "abcde", 0.025),  # the model ends while the user is ahead
    ],
)
def test_a_generation_that_ends_without_untyped_text_is_followed_by_another(
    words: Sequence[str], max_tokens: int, typed: str, typed_at_s: float
) -> None:
    script = Script(old=words, new=("fre", "sh"))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ", max_tokens=max_tokens)
        await asyncio.sleep(typed_at_s)
        new = await read(running.open("new", "x = " + typed, max_tokens=max_tokens))
        assert new.text == "fresh"
        assert running.recorder.diverged == [min(3, max_tokens)]

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old", "new"]


def test_a_generation_that_stops_after_the_typed_text_answers_with_no_text() -> None:
    script = Script(old=("ab", "cd"))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        await asyncio.sleep(0.025)
        new = await read(running.open("new", "x = abcd"))
        assert (new.text, new.reason) == ("", STOP)

    in_virtual_time(scenario, script.engine)
    assert script.asked == ["old"]


def test_a_request_at_the_end_of_the_generated_text_waits_for_its_first_token() -> None:
    script = Script(old=WORDS)

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        await asyncio.sleep(0.035)
        newer = running.open("new", "x = alpha")
        await read(newer)
        assert running.recorder.marks["new"].first_output == pytest.approx(0.04)

    in_virtual_time(scenario, script.engine)


def test_closing_the_older_answer_does_not_stop_a_reattached_generation() -> None:
    script = Script(old=WORDS)

    async def scenario(running: RunningService) -> None:
        older = running.open("old", "x = ")
        await asyncio.sleep(0.025)
        newer = running.open("new", "x = a")
        older.cancel()
        assert (await read(newer)).text == "lpha beta"
        assert running.recorder.ended == [("old", SUPERSEDED), ("new", STOP)]

    in_virtual_time(scenario, script.engine)


def test_cancelling_a_reattached_request_frees_the_engine() -> None:
    script = Script(old=["w", "a", "b", *(f" {n}" for n in range(4096))])

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ", max_tokens=4096)
        await asyncio.sleep(0.025)
        newer = running.open("new", "x = w", max_tokens=4096)
        await asyncio.sleep(0.02)
        newer.cancel()
        assert running.load == (0, 1, 0)
        await asyncio.sleep(0.02)
        assert running.load == (0, 0, 0)
        assert running.engine.stats().num_running == 0
        new = await read(newer)
        assert (new.reason, new.text) == (FinishReason.CANCELLED, "ab")
        assert new.end.usage.completion_tokens == 3

    in_virtual_time(scenario, script.engine)


def test_an_engine_failure_ends_the_reattached_request() -> None:
    script = Script(old=WORDS)

    async def scenario(running: RunningService) -> None:
        older = running.open("old", "x = ")
        await asyncio.sleep(0.025)
        newer = running.open("new", "x = a")
        assert isinstance(running.engine, ScriptedEngine)
        running.engine.crash()
        assert ((await read(older)).reason, (await read(newer)).reason) == (SUPERSEDED, FinishReason.ERROR)

    in_virtual_time(scenario, script.engine)


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


def test_a_diverged_generation_that_still_stops_can_not_be_reattached() -> None:
    script = Script(old=WORDS, third=("cat",))

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        newer = running.open("new", "x = b")
        await asyncio.sleep(0.03)  # it generated "alp" and is being stopped
        assert running.recorder.diverged == [1]
        third = running.open("third", "x = bc")
        new = await read(newer)
        assert (new.reason, new.end.usage) == (SUPERSEDED, Usage())
        assert ((await read(third)).text, running.recorder.diverged) == ("cat", [1])

    in_virtual_time(
        scenario, lambda: SlowToStop(script, TIMES), scheduling=dataclasses.replace(FOUR_SLOTS, max_slots=1)
    )
    assert script.asked == ["old", "third"]


def test_a_failed_generation_can_not_be_reattached() -> None:
    script = Script(new=("fresh",))  # "old" is a KeyError

    async def scenario(running: RunningService) -> None:
        running.open("old", "x = ")
        while not script.asked:
            await asyncio.sleep(0)
        assert (await read(running.open("new", "x = a"))).text == "fresh"

    in_virtual_time(scenario, script.engine)
