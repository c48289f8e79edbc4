"""The figures of a lost region, on scripted courses: each rule alone, and the gates."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from loadtest.bench.regions.course import Course
from loadtest.bench.regions.figures import Figures, figures, gates, invalid_because, is_in_flight, percentile, phases
from loadtest.targets.record import Outcome, Result
from loadtest.traffic.sections import CriteriaSettings
from tests.unit.loadtest.typed import request

CRITERIA = CriteriaSettings()
LOST_AT_S, BACK_AT_S, END_S = 10.0, 20.0, 40.0
SPREAD_S = 10.0
NEAR, FAR = 0, 1


def asked(
    at_s: float,
    ttft_s: float | None = 0.1,
    *,
    session: int = 0,
    region: int | None = NEAR,
    waits_s: float = 1.0,
    outcome: Outcome = Outcome.ANSWERED,
    total_s: float | None = 0.2,
    lag_s: float = 0.001,
    num_sent: int = 1,
    num_duplicates: int = 0,
) -> Result:
    """Return a request intended at a time of the run."""
    return Result(
        request=request(at_s, at_s + waits_s, session=session, sequence=round(at_s * 1000)),
        sent_at_s=at_s + lag_s,
        first_text_at_s=None if ttft_s is None else at_s + ttft_s,
        ended_at_s=None if total_s is None else at_s + total_s,
        outcome=outcome,
        completion_tokens=3,
        region=region,
        num_sent=num_sent,
        num_duplicates=num_duplicates,
    )


def course(*results: Result, num_editors: int = 2) -> Course:
    """Return a course in which all editors are near, then far, then come back one after the other."""
    found = Course(("near", "far"), num_editors, END_S, LOST_AT_S, BACK_AT_S, results=list(results))
    found.presence = [(5.0, {NEAR: 2}), (9.9, {NEAR: 2}), (11.0, {FAR: 2}), (21.0, {FAR: 2})]
    found.presence += [(24.0, {NEAR: 1, FAR: 1}), (33.0, {NEAR: 2})]
    return found


def figures_of(*results: Result) -> Figures:
    return figures(course(*results), CRITERIA, SPREAD_S)


def test_the_phases_leave_out_the_first_seconds() -> None:
    assert [(each.name, each.from_s, each.to_s) for each in phases(course())] == [
        ("before", 3.0, 10.0),
        ("away", 10.0, 20.0),
        ("back", 20.0, 40.0),
    ]
    assert phases(replace(course(), lost_at_s=2.0))[0].from_s == 1.0


def test_in_flight_is_what_was_sent_before_the_loss_and_had_not_ended() -> None:
    assert is_in_flight(asked(9.9), LOST_AT_S)
    assert is_in_flight(asked(9.9, total_s=None), LOST_AT_S)
    assert not is_in_flight(asked(9.7), LOST_AT_S), "it had ended"
    assert not is_in_flight(asked(9.9995), LOST_AT_S), "it was sent after the loss"
    assert not is_in_flight(asked(9.9, region=None), LOST_AT_S), "it was not sent at all"


def test_lost_requests_are_told_apart_by_whether_they_were_in_flight() -> None:
    found = figures_of(
        asked(9.9, None, outcome=Outcome.ERROR),
        asked(9.95, num_sent=2, region=FAR),
        asked(10.5, None, outcome=Outcome.ERROR, region=None),
        asked(11.0, None, outcome=Outcome.UNANSWERED, total_s=None, session=1),
        asked(12.0, None, outcome=Outcome.ERROR, waits_s=0.1, total_s=0.15),
        asked(13.0, None, outcome=Outcome.HUNG_UP, waits_s=0.1),
        asked(14.0, None, outcome=Outcome.SHED),
        asked(15.0, num_duplicates=2),
    )
    assert (found["in_flight"], found["lost"], found["lost_in_flight"], found["lost_others"]) == (2, 4, 1, 3)
    assert found["lost_wanted"] == 2, "one had no end at all, and one user had typed on"
    assert (found["resent"], found["duplicates"]) == (1, 2)


def test_the_next_request_of_a_user_is_the_first_that_the_user_waits_for() -> None:
    found = figures_of(
        asked(9.0, 0.9, region=NEAR),
        asked(10.1, None, outcome=Outcome.HUNG_UP, waits_s=0.25, region=FAR),
        asked(10.5, 0.0, outcome=Outcome.CACHED),
        asked(10.6, 0.25, region=FAR),
        asked(10.9, 0.9, region=FAR),
        asked(12.0, 0.15, session=1, region=FAR),
        asked(21.0, 0.15, session=2, region=FAR),
    )
    assert found["next_users"] == 2
    assert found["next_ms_p50"] == pytest.approx(150)
    assert found["next_ms_max"] == pytest.approx(250)
    assert (found["next_in_time_share"], found["next_elsewhere_share"]) == (1, 1)
    assert found["first_second_requests"] == 2
    assert found["first_second_ms_max"] == pytest.approx(900)


@pytest.mark.parametrize(
    "unanswered",
    [
        asked(10.6, None, outcome=Outcome.ERROR),
        asked(10.6, None, outcome=Outcome.SHED),
        asked(10.6, None, outcome=Outcome.HUNG_UP),
    ],
)
def test_a_next_request_without_an_answer_never_comes(unanswered: Result) -> None:
    found = figures_of(unanswered, asked(12.0, session=1, region=FAR))
    assert found["next_ms_max"] == math.inf
    assert found["next_in_time_share"] == 0.5
    assert found["next_elsewhere_share"] == 0.5


def test_an_empty_completion_answers_with_its_end() -> None:
    found = figures_of(asked(10.6, None, outcome=Outcome.EMPTY, region=FAR))
    assert found["next_ms_max"] == pytest.approx(200)


def test_users_come_back_counted_from_the_first() -> None:
    results = (asked(24.0, 0.12), asked(33.0, 0.18), asked(33.5, 0.9, region=FAR), asked(36.0), asked(37.0))
    found = figures_of(*results)
    assert found["first_back_s"] == pytest.approx(4)
    assert (found["back_s_p50"], found["back_s_p90"], found["back_share"]) == (0, 9, 1)
    assert found["back_max_share_per_s"] == 0, "no two looks within a second"
    assert found["returned_ttft_ms_p99"] == pytest.approx(180)
    assert found["returned_share"] == 1, "from 35 s on, a second after the last may return"


def test_users_who_stayed_at_a_silent_server_are_no_return() -> None:
    made = course(num_editors=4)
    made.presence = [(20.0 + at_s, {NEAR: count}) for at_s, count in enumerate((2, 1, 1, 2, 3, 4))]
    found = figures(made, CRITERIA, SPREAD_S)
    assert found["first_back_s"] == 3
    assert found["back_s_p90"] == 2


def test_a_request_elsewhere_after_the_spread_is_counted() -> None:
    results = (asked(24.0), asked(36.0, region=FAR), asked(37.0), asked(38.0, outcome=Outcome.CACHED, region=None))
    found = figures_of(*results)
    assert found["returned_share"] == 0.5


def test_the_steepest_second_of_a_return_is_found() -> None:
    made = course(num_editors=10)
    made.presence = [(20.0 + 0.2 * place, {NEAR: count}) for place, count in enumerate((0, 0, 1, 3, 3, 4, 6, 6, 10))]
    found = figures(made, CRITERIA, SPREAD_S)
    assert found["back_max_share_per_s"] == pytest.approx(0.7), "from 3 at 20.6 s to 10 at 21.6 s"


def test_users_who_never_come_back_fail_the_gates() -> None:
    made = course()
    made.presence = made.presence[:4]
    found = figures(made, CRITERIA, SPREAD_S)
    assert {"returned_share", "returned_ttft_ms_p99"} <= failed(30.0, found)


GOOD_AND_BAD = {
    "nearest_share_before": (1.0, 0.98),
    "lost_others": (0.0, 1.0),
    "next_elsewhere_share": (1.0, 0.99),
    "next_ms_max": (280.0, math.inf),
    "duplicates": (0.0, 1.0),
    "back_s_p50": (15.0, 2.0),
    "returned_share": (1.0, 0.9),
    "back_max_share_per_s": (0.06, 0.5),
    "returned_ttft_ms_p99": (120.0, 900.0),
}


def test_a_good_course_meets_every_gate_and_a_bad_one_fails_each() -> None:
    good, bad = ({name: values[place] for name, values in GOOD_AND_BAD.items()} for place in (0, 1))
    assert not failed(30.0, good)
    assert failed(30.0, bad) == failed(30.0, {}) == set(GOOD_AND_BAD)


def failed(return_spread_s: float, found: Mapping[str, float]) -> set[str]:
    """Return the figures whose gates are not met."""
    conditions = gates(return_spread_s, CRITERIA)
    return {each.figure for each in conditions if not each.is_met(found.get(each.figure, math.nan))}


def test_the_generators_lateness_is_told_apart_and_makes_a_run_invalid() -> None:
    made = course(asked(5.0), asked(11.0, 0.2, lag_s=0.02, region=FAR), asked(25.0))
    made.loop_lags = [(5.0, 0.001), (11.0, 0.03), (25.0, 0.002)]
    found = figures(made, CRITERIA, SPREAD_S)
    assert [round(found[f"lag_ms_p99_{phase}"]) for phase in ("before", "away", "back")] == [1, 20, 1]
    assert found["loop_lag_ms_max_away"] == pytest.approx(30)
    (reason,) = invalid_because(found)
    assert "while the region was away is 20.0 ms, more than 5 ms" in reason


def test_seen_completions_are_counted_in_each_phase() -> None:
    found = figures_of(
        asked(5.0),
        asked(5.5, 0.26),
        asked(6.0, 0.1, waits_s=0.25),
        asked(11.0, region=FAR),
        asked(30.0),
    )
    assert found["seen_per_s_before"] == pytest.approx(1 / 7)
    assert found["requests_per_s_before"] == pytest.approx(3 / 7)
    assert found["seen_per_s_away"] == pytest.approx(1 / 10)
    assert found["seen_per_s_back"] == pytest.approx(1 / 20)


def test_percentiles_keep_infinity() -> None:
    assert percentile([1.0, 2.0, math.inf, 3.0], 50) == 2.0
    assert percentile([1.0, 2.0, math.inf, 3.0], 99) == math.inf
    assert math.isnan(percentile([], 50))
