"""Simulated editors, as busy as they say, and the requests that each figure of a policy counts."""

import itertools
from dataclasses import replace

import pytest

from completion_server.core.outcome import FinishReason
from loadtest.simulation.workload import (
    EditorModel,
    SimulatedRequest,
    SimulatedResult,
    Workload,
    figures_of,
    is_seen,
    requests_of_all,
)
from loadtest.traffic.typist import LogNormal, TypingModel

FAST = EditorModel(TypingModel(key_gap=LogNormal(0.060, 0.5), keys_per_burst=5.0))
"""Of their gaps a third is shorter than the debounce."""


def test_a_key_followed_within_the_debounce_sends_nothing() -> None:
    asked = requests_of_all(20, FAST, 20, seed=1)
    assert all(each.next_key_at > each.at for each in asked)
    eager = requests_of_all(20, EditorModel(FAST.typing, debounce_s=0.0), 20, seed=1)
    assert len(asked) < 0.8 * len(eager)
    after = {(each.user, round(each.at, 9)) for each in eager}
    assert {(each.user, round(each.at - 0.050, 9)) for each in asked if each.at >= 0.050} <= after


def test_requests_come_in_order_and_a_pause_is_half_a_second_from_the_key_on() -> None:
    asked = requests_of_all(20, EditorModel(), 20, seed=1)
    assert all(before.at <= after.at for before, after in itertools.pairwise(asked))
    assert 0 <= asked[0].at <= asked[-1].at < 20
    for each in asked:
        assert each.is_pause == (each.next_key_at - (each.at - 0.050) >= 0.500)


@pytest.mark.parametrize("model", [EditorModel(), FAST, EditorModel().resting(0.15)])
def test_users_send_requests_at_the_models_rate(model: EditorModel) -> None:
    asked = requests_of_all(2000, model, 20, seed=1)
    assert len(asked) / 2000 / 20 == pytest.approx(model.requests_per_s, rel=0.15)
    assert EditorModel().resting(0.15).requests_per_s == pytest.approx(0.15)
    with pytest.raises(ValueError, match="never rests"):
        EditorModel().resting(2.0)


WORKLOAD = Workload(seconds=10, budget_s=0.250, look_s=0.200)


def result(
    ttft_s: float | None = 0.1,
    next_key_after_s: float = 1.0,
    reason: FinishReason = FinishReason.LENGTH,
    at: float = 5.0,
    slot_s: float = 0.2,
) -> SimulatedResult:
    request = SimulatedRequest(0, at, at + next_key_after_s, is_pause=next_key_after_s >= 0.45)
    ended_at = at + 0.4
    first_text_at = None if ttft_s is None else at + ttft_s
    return SimulatedResult(request, reason, None if ttft_s is None else ended_at - slot_s, first_text_at, ended_at)


@pytest.mark.parametrize(
    ("ttft_s", "next_key_after_s", "user", "seen"),
    [
        (0.1, 0.31, 0, True),
        (0.1, 0.29, 0, False),
        (0.24, 9.0, 0, True),
        (0.26, 9.0, 0, False),
        (None, 9.0, 0, False),
        (0.1, 9.0, 1, False),
    ],
    ids=["stands", "does not stand", "in time", "late", "no text", "late for a hurried user"],
)
def test_a_seen_completion_comes_in_time_and_stands_for_a_while(
    ttft_s: float | None, next_key_after_s: float, user: int, *, seen: bool
) -> None:
    found = result(ttft_s, next_key_after_s)
    found = replace(found, request=replace(found.request, user=user))
    assert is_seen(found, replace(WORKLOAD, hurried_s=0.090)) is seen


def test_only_requests_between_lead_and_trail_count_and_of_nothing_there_are_no_shares() -> None:
    none = figures_of([], WORKLOAD)
    assert (none.offered_per_s, none.seen_per_s) == (0, 0)
    assert (none.pauses_answered_share, none.ttft_ms, none.shed_share, none.wasted_share) == (None,) * 4
    found = figures_of([result(at=at) for at in (0.5, 1.9, 2.0, 11.9, 12.0)], WORKLOAD)
    assert found.offered_per_s == 0.2
    assert found.load == pytest.approx(0.2 / (8 / 0.205))


def test_shares_and_percentiles() -> None:
    superseded = result(0.2, 0.2, FinishReason.SUPERSEDED, slot_s=0.1)
    hung_up = result(None, 0.1, FinishReason.CANCELLED)
    shed = result(None, 1.0, FinishReason.SHED)
    late = result(0.3, 1.0)
    found = figures_of([result(), superseded, hung_up, shed, late], WORKLOAD)
    assert (found.seen_per_s, found.seeable_per_s, found.pauses_per_s) == (0.1, 0.3, 0.3)
    assert found.pauses_answered_share == pytest.approx(1 / 3)
    assert (found.shed_share, found.superseded_share) == (0.2, 0.4)
    assert found.wasted_share == pytest.approx(0.3 / 0.5)
    assert found.pause_ttft_ms == pytest.approx((100, 300, 300))
    assert found.ttft_ms == pytest.approx((200, 300, 300))
