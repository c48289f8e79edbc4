"""Overload and a spike, in virtual time: what users see falls little below the peak, and is normal again soon."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtest.simulation.workload import Policy, SimulatedRequest, SimulatedResult, Workload, figures_of
from loadtest.simulation.world import simulate

OVERLOAD, SPIKE = 3.0, 10.0
SPIKE_AT_S, SPIKE_S, NORMAL_WITHIN_S = 20.0, 10.0, 10.0


def seen_per_s(load: float, seconds: float) -> float:
    workload = Workload(load=load, seconds=seconds)
    return figures_of(simulate(workload, Policy(), workload.requests()), workload).seen_per_s


@pytest.mark.parametrize("seconds", [30.0, pytest.param(300.0, marks=pytest.mark.full)])
def test_three_times_overload_leaves_nine_tenths_of_the_peak(seconds: float) -> None:
    peak = max(seen_per_s(load, seconds) for load in (1.0, 1.5))
    assert seen_per_s(OVERLOAD, seconds) >= 0.9 * peak


def test_ten_seconds_after_a_spike_all_is_as_before() -> None:
    calm = Workload(load=0.5, seconds=60.0)
    others = Workload(load=SPIKE, seconds=SPIKE_S - 3.0, seed=2)  # with its lead and its trail 10 s
    num_users = 1 + max(each.user for each in calm.requests())
    spike = [moved(each, SPIKE_AT_S, num_users) for each in others.requests()]
    assert SPIKE_S - 1.0 < spike[-1].at - spike[0].at < SPIKE_S
    both = sorted([*calm.requests(), *spike], key=lambda each: each.at)
    results = [each for each in simulate(calm, Policy(), both) if each.request.user < num_users]
    before = in_time(results, calm, 0.0, SPIKE_AT_S)
    meanwhile = in_time(results, calm, SPIKE_AT_S, SPIKE_AT_S + SPIKE_S)
    after = in_time(results, calm, SPIKE_AT_S + SPIKE_S + NORMAL_WITHIN_S, calm.seconds)
    assert meanwhile < before <= after + 0.02


def moved(request: SimulatedRequest, seconds: float, num_users: int) -> SimulatedRequest:
    """Return a request of another user at a later time."""
    times = {"at": request.at + seconds, "next_key_at": request.next_key_at + seconds}
    return replace(request, user=request.user + num_users, **times)


def in_time(results: Sequence[SimulatedResult], workload: Workload, begin: float, end: float) -> float:
    """Return the share of the requests from a time to another that had text within the budget, where the user waits."""
    waited = [each for each in results if begin <= each.request.at < end and each.request.is_pause]
    return sum(each.ttft_s is not None and each.ttft_s <= workload.budget_s for each in waited) / len(waited)
