"""The prompts that are refused after the engine failed."""

import pytest

from completion_server.core.errors import Code, SuspectedPromptError, UnavailableError
from completion_server.engine.quarantine import AdmittedPrompt, Quarantine

BAD = [6, 6, 6]
GOOD = [1, 2, 3]
OTHER = [4, 5]
FRESH = [7]


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine(300)


def fail_with(quarantine: Quarantine, *prompts: list[int], now: float = 0.0) -> None:
    """Fail while these prompts are computed; their generations end after the failure."""
    entries = [quarantine.enter(prompt, now) for prompt in prompts]
    quarantine.engine_failed(now)
    for entry in entries:
        quarantine.leave(entry)


def finish(quarantine: Quarantine, entry: AdmittedPrompt) -> None:
    quarantine.output_received(entry)
    quarantine.last_output_received(entry)
    quarantine.leave(entry)


def check_admitted(quarantine: Quarantine, *prompts: list[int], now: float) -> None:
    for prompt in prompts:
        quarantine.leave(quarantine.enter(prompt, now))


@pytest.mark.parametrize(
    ("quarantine_s", "failed_at", "now"),
    [(300, [0], 1), (300, [0, 300], 301), (300, [0, 60], 360), (0, [0, 0, 0], 0)],
    ids=["one failure is no proof", "a suspect is forgotten", "the quarantine ends", "it refuses nothing"],
)
def test_a_prompt_is_admitted(quarantine_s: float, failed_at: list[float], now: float) -> None:
    quarantine = Quarantine(quarantine_s)
    for at in failed_at:
        fail_with(quarantine, BAD, now=at)
    check_admitted(quarantine, BAD, now=now)


def test_a_prompt_that_was_computed_at_two_failures_is_refused_and_each_further_one_doubles_the_time(
    quarantine: Quarantine,
) -> None:
    fail_with(quarantine, BAD)
    fail_with(quarantine, BAD, now=60)
    with pytest.raises(SuspectedPromptError, match=r"failed 2 times .* refused for another 200 s") as caught:
        quarantine.enter(BAD, 160)
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert caught.value.retry_after_ms == 200_000
    check_admitted(quarantine, GOOD, now=160)
    fail_with(quarantine, BAD, now=400)
    with pytest.raises(SuspectedPromptError, match=r"failed 3 times .* refused for another 600 s"):
        quarantine.enter(BAD, 400)


def test_suspects_are_tried_one_at_a_time_so_that_the_innocent_are_not_refused(quarantine: Quarantine) -> None:
    fail_with(quarantine, BAD, GOOD, OTHER)
    bad = quarantine.enter(BAD, 1)
    with pytest.raises(UnavailableError, match="one at a time") as caught:
        quarantine.enter(GOOD, 1)
    assert caught.value.retry_after_ms
    fresh = quarantine.enter(FRESH, 1)
    quarantine.engine_failed(2)
    quarantine.leave(bad)
    quarantine.leave(fresh)
    with pytest.raises(SuspectedPromptError):
        quarantine.enter(BAD, 3)
    for prompt in (GOOD, OTHER, FRESH):
        finish(quarantine, quarantine.enter(prompt, 3))


def test_a_suspect_whose_caller_gave_up_is_not_cleared_before_the_next_output(quarantine: Quarantine) -> None:
    fail_with(quarantine, BAD, GOOD)
    check_admitted(quarantine, BAD, now=1)
    with pytest.raises(UnavailableError):
        quarantine.enter(GOOD, 2)
    quarantine.engine_failed(11)
    with pytest.raises(SuspectedPromptError):
        quarantine.enter(BAD, 12)
    check_admitted(quarantine, GOOD, now=12)


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_a_suspect_that_had_an_output_and_that_the_engine_survived_is_none_any_more(
    quarantine: Quarantine, is_cut_short: bool
) -> None:
    fail_with(quarantine, GOOD)
    entry = quarantine.enter(GOOD, 1)
    if is_cut_short:
        quarantine.output_received(entry)
        quarantine.leave(entry)
        quarantine.output_received()
    else:
        finish(quarantine, entry)
    fail_with(quarantine, GOOD, now=2)
    check_admitted(quarantine, GOOD, now=3)


def test_a_prompt_that_was_computed_to_its_end_is_no_suspect_of_a_failure_after_it(quarantine: Quarantine) -> None:
    for now in range(2):
        finish(quarantine, quarantine.enter(GOOD, now))
        quarantine.engine_failed(now)
    check_admitted(quarantine, GOOD, now=2)


def test_prompts_sent_after_a_hang_do_not_displace_the_suspect(quarantine: Quarantine) -> None:
    for failure in range(2):
        check_admitted(quarantine, BAD, *([failure, number] for number in range(1000)), now=0)
        quarantine.engine_failed(0)
    with pytest.raises(SuspectedPromptError):
        quarantine.enter(BAD, 1)
