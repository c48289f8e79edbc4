import pytest

from completion_server.core.errors import Code, SuspectedPromptError, UnavailableError
from completion_server.engine.quarantine import AdmittedPrompt, Quarantine

BAD = [6, 6, 6]
GOOD = [1, 2, 3]
OTHER = [4, 5]
FRESH = [7]


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


def test_one_failure_is_no_proof() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD)
    quarantine.leave(quarantine.enter(BAD, 1))


def test_a_prompt_that_was_computed_at_two_failures_is_refused() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD)
    fail_with(quarantine, BAD, now=60)
    with pytest.raises(SuspectedPromptError, match=r"failed 2 times .* refused for another 200 s") as caught:
        quarantine.enter(BAD, 160)
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert caught.value.retry_after_ms == 200_000
    quarantine.leave(quarantine.enter(GOOD, 160))
    quarantine.leave(quarantine.enter(BAD, 360))


def test_each_further_failure_doubles_it() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD)
    fail_with(quarantine, BAD)
    fail_with(quarantine, BAD, now=400)
    with pytest.raises(SuspectedPromptError, match=r"failed 3 times .* refused for another 600 s"):
        quarantine.enter(BAD, 400)


def test_two_callers_of_one_prompt_are_one_failure() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD, BAD)
    quarantine.leave(quarantine.enter(BAD, 1))


def test_suspects_are_tried_one_at_a_time_so_that_the_innocent_are_not_refused() -> None:
    quarantine = Quarantine(300)
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


def test_a_suspect_whose_caller_gave_up_is_not_cleared_before_the_next_output() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD, GOOD)
    quarantine.leave(quarantine.enter(BAD, 1))
    with pytest.raises(UnavailableError):
        quarantine.enter(GOOD, 2)
    quarantine.engine_failed(11)
    with pytest.raises(SuspectedPromptError):
        quarantine.enter(BAD, 12)
    quarantine.leave(quarantine.enter(GOOD, 12))


def test_an_output_clears_the_prompts_that_ended_before_it() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD, GOOD)
    quarantine.leave(quarantine.enter(GOOD, 1))
    quarantine.output_received()
    quarantine.engine_failed(2)
    quarantine.leave(quarantine.enter(GOOD, 3))


def test_a_suspect_that_is_computed_to_its_end_is_none_any_more() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, GOOD)
    finish(quarantine, quarantine.enter(GOOD, 1))
    fail_with(quarantine, GOOD, now=2)
    quarantine.leave(quarantine.enter(GOOD, 3))


def test_a_suspect_that_was_cut_short_after_an_output_is_none_once_the_engine_has_survived_it() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, GOOD)
    cut_short = quarantine.enter(GOOD, 1)
    quarantine.output_received(cut_short)
    quarantine.leave(cut_short)
    quarantine.output_received()
    fail_with(quarantine, GOOD, now=2)
    quarantine.leave(quarantine.enter(GOOD, 3))


def test_a_suspect_without_an_output_stays_one() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD)
    quarantine.leave(quarantine.enter(BAD, 1))
    quarantine.output_received()
    fail_with(quarantine, BAD, now=2)
    with pytest.raises(SuspectedPromptError):
        quarantine.enter(BAD, 3)


def test_a_prompt_that_was_computed_to_its_end_is_no_suspect_of_a_failure_after_it() -> None:
    quarantine = Quarantine(300)
    for now in range(2):
        finish(quarantine, quarantine.enter(GOOD, now))
        quarantine.engine_failed(now)
    quarantine.leave(quarantine.enter(GOOD, 2))


def test_a_suspect_is_forgotten() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD)
    fail_with(quarantine, BAD, now=300)
    quarantine.leave(quarantine.enter(BAD, 301))


def test_it_remembers_no_more_than_a_thousand_suspects() -> None:
    quarantine = Quarantine(300)
    fail_with(quarantine, BAD)
    fail_with(quarantine, BAD)
    fail_with(quarantine, *([number] for number in range(1024)), now=1)
    quarantine.leave(quarantine.enter(BAD, 2))


def test_prompts_sent_after_a_hang_do_not_displace_the_suspect() -> None:
    quarantine = Quarantine(300)
    for failure in range(2):
        quarantine.leave(quarantine.enter(BAD, 0))
        for number in range(1000):
            quarantine.leave(quarantine.enter([failure, number], 0))
        quarantine.engine_failed(0)
    with pytest.raises(SuspectedPromptError):
        quarantine.enter(BAD, 1)


def test_a_quarantine_of_zero_refuses_nothing() -> None:
    quarantine = Quarantine(0)
    for _ in range(3):
        fail_with(quarantine, BAD)
    quarantine.leave(quarantine.enter(BAD, 0))
