"""The requests that each figure counts."""

from dataclasses import replace

import pytest

from completion_server.core.outcome import FinishReason
from loadtest.simulation.editors import SimulatedRequest
from loadtest.simulation.figures import figures_of, is_seen
from loadtest.simulation.workload import SimulatedResult, Workload

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
    ("ttft_s", "next_key_after_s", "seen"),
    [(0.1, 0.31, True), (0.1, 0.29, False), (0.24, 9.0, True), (0.26, 9.0, False), (None, 9.0, False)],
)
def test_a_seen_completion_comes_in_time_and_stands_for_a_while(
    ttft_s: float | None, next_key_after_s: float, *, seen: bool
) -> None:
    assert is_seen(result(ttft_s, next_key_after_s), WORKLOAD) is seen


def test_a_hurried_user_has_less_time() -> None:
    hurried = replace(WORKLOAD, hurried_s=0.090)
    patient = result(0.1)
    assert is_seen(patient, hurried)
    assert not is_seen(replace(patient, request=replace(patient.request, user=1)), hurried)


def test_only_requests_between_lead_and_trail_count() -> None:
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


def test_of_nothing_there_are_no_shares() -> None:
    found = figures_of([], WORKLOAD)
    assert (found.offered_per_s, found.seen_per_s) == (0, 0)
    assert (found.pauses_answered_share, found.ttft_ms, found.shed_share, found.wasted_share) == (None,) * 4
