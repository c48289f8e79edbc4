"""When a controller that wants no drafts has the draft model switched off."""

from completion_server.speculation.rest import DraftRest


def times_of_change(rest: DraftRest, largest_k: int, until: int, begin: int = 0) -> list[int]:
    return [now for now in range(begin, until) if rest.observe(largest_k, float(now))]


def test_drafts_that_never_pay_are_tried_ever_more_rarely() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 0, 5000) == [60, 660, 720, 1920, 1980, 4380, 4440]
    assert rest.is_off


def test_drafts_that_pay_stay_on() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 2, 5000) == []
    assert times_of_change(rest, 0, 5050, 5000) == []
    assert times_of_change(rest, 1, 9000, 5050) == []


def test_a_start_without_drafts_tries_them_after_ten_minutes() -> None:
    rest = DraftRest()
    rest.switch_off(100.0)
    assert times_of_change(rest, 0, 800, 100) == [700, 760]


def test_a_clock_that_begins_at_zero_makes_no_difference() -> None:
    rest = DraftRest()
    rest.switch_off(0.0)
    assert times_of_change(rest, 0, 700) == [600, 660]


def test_drafts_that_paid_again_begin_with_the_short_time() -> None:
    rest = DraftRest()
    assert times_of_change(rest, 0, 2000) == [60, 660, 720, 1920, 1980]
    times_of_change(rest, 3, 5000, 4380)
    assert times_of_change(rest, 0, 6000, 5000)[:2] == [5060, 5660]
