"""What users ask for and what a server can do, compared with drawn typists, a simulated queue and the load tester."""

import heapq
import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from loadtest.planning.calculation import (
    Demand,
    ServerCapacity,
    bounds_at,
    capacity_of,
    computed_tokens,
    demand_of,
    prefix_cache_of,
    rate_in_time,
    share_waiting,
)
from loadtest.planning.inputs import Inputs
from loadtest.traffic.typist import TypingModel

DEBOUNCE_S = 0.05
LARGE = Inputs(100, gpu_memory_gb=10_000)
"""Memory for the documents of all."""


def capacity(demand: Demand, inputs: Inputs) -> ServerCapacity:
    return capacity_of(demand, inputs, prefix_cache_of(inputs))


def test_requests_end_as_those_of_drawn_typists_do() -> None:
    model, chance = TypingModel(away_share=0.5), random.Random(3)
    standing: list[float] = []
    for _ in range(40):
        keys = model.key_times_s(4000, chance)
        gaps = [after - before for before, after in itertools.pairwise(keys)]
        standing += [gap - DEBOUNCE_S for gap in gaps if gap > DEBOUNCE_S]
    for seconds in (0.06, 0.16, 0.26, 1.0):
        share = sum(each > seconds for each in standing) / len(standing)
        assert model.share_standing(DEBOUNCE_S, seconds) == pytest.approx(share, abs=0.01)
        mean = sum(min(each, seconds) for each in standing) / len(standing)
        assert model.mean_standing_s(DEBOUNCE_S, seconds) == pytest.approx(mean, rel=0.02)


def erlang_c(slots: int, load: float) -> float:
    """The textbook form of the formula, with its sums."""
    last = load**slots / math.factorial(slots) * slots / (slots - load)
    return last / (sum(load**number / math.factorial(number) for number in range(slots)) + last)


@pytest.mark.parametrize(("slots", "load"), [(1, 0.5), (2, 1.9), (10, 8.0), (32, 30.0)])
def test_the_share_that_waits_is_erlangs(slots: int, load: float) -> None:
    assert share_waiting(slots, load) == pytest.approx(erlang_c(slots, load))


def test_a_simulated_queue_keeps_its_promise_at_the_rate_found() -> None:
    slots, held_s, budget_s, in_time = 8, 0.12, 0.03, 0.95
    rate = rate_in_time(slots, held_s, budget_s, in_time)
    assert 0.5 < rate * held_s / slots < 1
    chance, now, num_late, num = random.Random(1), 0.0, 0, 60_000
    free_at = [0.0] * slots
    for _ in range(num):
        now += chance.expovariate(rate)
        starts = max(now, heapq.heappop(free_at))
        num_late += starts - now > budget_s
        heapq.heappush(free_at, starts + chance.expovariate(1 / held_s))
    assert num_late / num == pytest.approx(1 - in_time, abs=0.015)


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"slots": 1}, "slots"),
        ({"computed_tokens_per_s": 1000.0}, "computed tokens"),
        ({"front_end_per_s": 5.0}, "front end"),
    ],
)
def test_the_smallest_bound_is_the_capacity(changes: dict[str, Any], limit: str) -> None:
    inputs = replace(LARGE, **changes)
    demand = demand_of(inputs)
    found = capacity(demand, inputs)
    assert min(found.bounds, key=lambda name: found.bounds[name]) == limit
    assert found.requests_per_s == pytest.approx(found.bounds[limit], rel=1e-4)
    assert found.sessions == pytest.approx(found.requests_per_s / demand.requests_per_s * 100)


def test_cold_requests_may_wait_for_less() -> None:
    rate = rate_in_time(8, 0.12, 0.1, 0.95)
    assert rate_in_time(8, 0.12, 0.1, 0.95, 0.04, 0.05) < rate
    # So late that none of them is in time: the others must be in time more often.
    late = rate_in_time(8, 0.12, 0.1, 0.95, 0.04, 0.2)
    assert late == pytest.approx(rate_in_time(8, 0.12, 0.1, 0.95 / 0.96))
    assert rate_in_time(8, 0.12, 0.1, 0.95, 0.06, 0.2) == 0.0
    assert rate_in_time(9, 0.12, 0.1, 0.95) > rate < rate_in_time(8, 0.06, 0.1, 0.95)


def test_drafts_are_computed_and_save_steps() -> None:
    demand, cache = demand_of(LARGE), prefix_cache_of(LARGE)
    alone, drafted = replace(LARGE, draft_tokens=0), replace(LARGE, draft_tokens=5, draft_acceptance=0.82)
    assert alone.tokens_per_step == 1
    assert computed_tokens(1, demand, alone, cache) == pytest.approx(alone.new_prompt_tokens + demand.generated_tokens)
    assert drafted.tokens_per_step == pytest.approx((1 - 0.82**6) / (1 - 0.82))
    assert computed_tokens(1, demand, drafted, cache) > computed_tokens(1, demand, alone, cache)


def test_cached_answers_reach_no_gpu_but_the_front_end() -> None:
    cache = prefix_cache_of(LARGE)
    none, half = (replace(LARGE, cached_share=share) for share in (0.0, 0.5))
    without, with_cache = (bounds_at(100, demand_of(each), each, cache) for each in (none, half))
    assert with_cache["slots"] == pytest.approx(2 * without["slots"])
    assert with_cache["computed tokens"] == pytest.approx(2 * without["computed tokens"])
    assert with_cache["front end"] == without["front end"]
