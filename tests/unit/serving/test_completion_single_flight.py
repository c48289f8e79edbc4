"""Single flight: which requests share one generation, and what they and their callers are charged."""

import asyncio
import dataclasses
from typing import Any

import pytest

from completion_server.admission.gate import AdmissionSettings
from completion_server.core.outcome import FinishReason
from completion_server.core.request import Caller, Mode, Sampling, Snippet
from completion_server.engine.settings import CacheScope
from tests.support.services import FOUR_SLOTS, WORDS, RunningService, Script, in_virtual_time, read

BY_SESSION = dataclasses.replace(FOUR_SLOTS, lane="session")
ANN, TWIN = Caller("ann", "one"), Caller("ann", "two")
BOB, EVE = Caller("bob", "one"), Caller("eve", "one", tenant="other")


def generations(
    first: dict[str, Any], second: dict[str, Any], *, cache_scope: CacheScope = "user", **scheduling: Any
) -> list[str]:
    """Return the requests of two, opened at once by default by two sessions of a user, that had a generation."""
    script = Script(first=WORDS, second=WORDS)

    async def scenario(running: RunningService) -> None:
        older = running.open("first", first.pop("prefix", "x = "), **{"caller": ANN} | first)
        newer = running.open("second", second.pop("prefix", "x = "), **{"caller": TWIN} | second)
        for each in (older, newer):
            answer = await read(each)
            assert (answer.text, answer.reason) == ("alpha beta", FinishReason.STOP)

    settings = dataclasses.replace(BY_SESSION, **scheduling)
    in_virtual_time(scenario, script.engine, scheduling=settings, cache_scope=cache_scope)
    return script.asked


def test_sessions_of_a_user_that_ask_the_same_share_a_generation() -> None:
    assert generations({}, {}) == ["first"]
    assert generations({}, {}, single_flight=False) == ["first", "second"]


def test_requests_that_supersede_none_share_a_generation() -> None:
    assert generations({}, {"caller": ANN}, lane="user", supersede=False) == ["first"]


@pytest.mark.parametrize("refusing", [("first",), ("second",), ("first", "second")])
def test_a_request_without_the_completion_cache_shares_no_generation(refusing: tuple[str, ...]) -> None:
    first, second = ({"use_completion_cache": name not in refusing} for name in ("first", "second"))
    assert generations(first, second) == ["first", "second"]


def test_a_seeded_answer_is_shared_and_a_sampled_one_is_not() -> None:
    for sampling, asked in (
        (Sampling(0.8, seed=7), ["first"]),
        (Sampling(0.0), ["first"]),
        (Sampling(0.8), ["first", "second"]),
    ):
        assert generations({"sampling": sampling}, {"sampling": sampling}) == asked


@pytest.mark.parametrize(
    ("caller", "cache_scope", "is_shared"),
    [(BOB, "user", False), (BOB, "tenant", True), (EVE, "tenant", False), (TWIN, "user", True)],
)
def test_callers_that_share_the_prefix_cache_share_generations(
    caller: Caller, cache_scope: CacheScope, is_shared: bool
) -> None:
    asked = ["first"] if is_shared else ["first", "second"]
    assert generations({}, {"caller": caller}, cache_scope=cache_scope) == asked


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix": "y = "},
        {"suffix": ")"},
        {"max_tokens": 9},
        {"sampling": Sampling(0.0, 1)},
        {"stop": (";",)},
        {"snippets": (Snippet("a", "b"),)},
        {"document_uri": "b.py"},
        {"language_id": "ruby"},
        {"mode": Mode.SINGLE_LINE},
    ],
)
def test_a_request_with_other_parameters_has_a_generation_of_its_own(changes: dict[str, Any]) -> None:
    assert generations({}, changes) == ["first", "second"]


@pytest.mark.parametrize(("is_shared", "third"), [(True, FinishReason.STOP), (False, FinishReason.SHED)])
def test_tokens_are_charged_once(is_shared: bool, third: FinishReason) -> None:
    """A generation costs 8 tokens of a burst of 10: a second one puts the user into debt."""
    script = Script(first=WORDS, second=WORDS, third=WORDS)
    admission = AdmissionSettings(user_requests_per_s=0, user_tokens_per_s=10, user_token_burst=10)

    async def scenario(running: RunningService) -> None:
        requests = [running.open(name, "x = ", caller=caller) for name, caller in (("first", ANN), ("second", TWIN))]
        answers = [await read(each) for each in requests]
        assert [each.end.usage.completion_tokens for each in answers] == [5, 5]
        assert [each.end.usage.is_shared for each in answers] == [False, is_shared]
        assert (await read(running.open("third", "y = ", caller=ANN))).reason is third

    settings = dataclasses.replace(BY_SESSION, single_flight=is_shared)
    in_virtual_time(scenario, script.engine, scheduling=settings, admission=admission)


def test_a_generation_outlives_the_editor_that_asked_first() -> None:
    script = Script(first=WORDS)

    async def scenario(running: RunningService) -> None:
        first, second = running.open("first", "x = ", caller=ANN), running.open("second", "x = ", caller=TWIN)
        await asyncio.sleep(0.025)
        first.cancel()
        assert ((await read(first)).reason, (await read(second)).text) == (FinishReason.CANCELLED, "alpha beta")

    in_virtual_time(scenario, script.engine, scheduling=BY_SESSION)
    assert script.asked == ["first"]
