"""The fleet of a plan: GPUs never fall with load or spare, units fit, and the case of docs/capacity.md."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.planning.calculation import Plan, plan_of
from loadtest.planning.inputs import Inputs, Region

shares = st.lists(st.integers(1, 20), min_size=2, max_size=5).map(
    lambda parts: tuple(Region(f"r{place}", part / sum(parts)) for place, part in enumerate(parts))
)
sessions = st.integers(1, 200_000)


def plan(num: int, **requirements: Any) -> Plan:
    return plan_of(Inputs(num, **requirements))


@given(sessions, sessions, shares, st.integers(0, 5))
def test_gpus_never_fall_with_sessions_spare_or_surge(
    one: int, other: int, regions: tuple[Region, ...], surge: int
) -> None:
    fewer, more = sorted((one, other))
    first, second = (plan(num, regions=regions) for num in (fewer, more))
    assert all(a.needed_gpus <= b.needed_gpus for a, b in zip(first.regions, second.regions, strict=True))
    assert plan(fewer, regions=regions, survive=1).needed_gpus >= first.needed_gpus
    assert plan(fewer, regions=regions, surge=surge).needed_gpus == first.needed_gpus + surge * len(regions)


@given(sessions, shares, st.integers(0, 2))
def test_a_sized_fleet_answers_in_time_also_without_any_regions_that_it_survives(
    num: int, regions: tuple[Region, ...], survive: int
) -> None:
    survive = min(survive, len(regions) - 1)
    found = plan(num, regions=regions, survive=survive)
    server_per_s = found.capacity.requests_per_s
    assert all(0 < region.busy <= 1 + 1e-9 for region in found.regions)
    assert sum(region.requests_per_s for region in found.regions) == pytest.approx(found.demand.requests_per_s)
    for lost in itertools.combinations(found.regions, survive):
        share = sum(region.requests_per_s for region in lost) / found.demand.requests_per_s
        for region in found.regions:
            if region not in lost:
                assert region.requests_per_s / (1 - share) <= region.gpus * server_per_s * (1 + 1e-9)


@given(sessions, st.floats(0.1, 10_000), st.integers(1, 8))
def test_a_measured_server_replaces_the_model_of_one(num: int, rate: float, gpus_per_server: int) -> None:
    one = (Region("office", 1.0),)
    found = plan(num, regions=one, server_per_s=rate, gpus_per_server=gpus_per_server, slots=1)
    assert found.needed_gpus == math.ceil(found.demand.requests_per_s / rate) * gpus_per_server
    assert found.cache is None
    assert found.regions[0].busy_if_lost is None


def test_the_case_of_twelve_thousand_sessions() -> None:
    """By hand in the docstring of the module, and in docs/capacity.md."""
    sized = plan(12_000)
    assert sized.needed_gpus == 24
    assert sized.demand.requests_per_s == pytest.approx(2008, abs=1)
    assert sized.capacity.requests_per_s == pytest.approx(95, abs=1)
    assert sized.shown_per_hour == pytest.approx(369_000, abs=1000)
    assert sized.usd_per_shown == pytest.approx(0.000195, abs=0.000001)
    assert plan(12_000, survive=1).needed_gpus == 33

    given_fleet = plan(12_000, gpus_per_region=4)
    assert (given_fleet.gpus, given_fleet.usd_per_hour) == (12, 36)
    assert given_fleet.regions[0].busy == pytest.approx(1.75, abs=0.01)
    assert given_fleet.usd_per_shown == pytest.approx(0.000171, abs=0.000001)


def test_a_fleet_that_is_too_small_shows_fewer() -> None:
    small, enough = plan(12_000, gpus_per_region=1), plan(12_000, gpus_per_region=10)
    assert small.shown_per_hour < enough.shown_per_hour / 2
    assert enough.shown_per_hour == plan(12_000, gpus_per_region=50).shown_per_hour
    assert enough.usd_per_hour == pytest.approx(30 * 3.0)
    assert enough.usd_per_shown * enough.shown_per_hour == pytest.approx(enough.usd_per_hour)
