"""The fleet of a plan: GPUs never fall with load or spare, units fit, and the case of docs/capacity.md."""

import itertools
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.planning.assumptions import Assumptions, Money, Users
from loadtest.planning.fleet import FleetRequirements, Plan, Region, cost_levers, gpus_for, plan_of, variations
from loadtest.planning.report import Measured

THREE = tuple(Region(name, 1 / 3) for name in ("us-east", "us-west", "eu-west"))
shares = st.lists(st.integers(1, 20), min_size=2, max_size=5).map(
    lambda parts: tuple(Region(f"r{place}", part / sum(parts)) for place, part in enumerate(parts))
)
sessions = st.integers(1, 200_000)


def plan(num: int, **requirements: Any) -> Plan:
    return plan_of(Assumptions(Users(num)), FleetRequirements(**{"regions": THREE} | requirements))


@given(sessions, sessions, shares, st.integers(0, 1))
def test_more_sessions_never_need_fewer_gpus(one: int, other: int, regions: tuple[Region, ...], survive: int) -> None:
    fewer, more = sorted((one, other))
    first, second = (plan(num, regions=regions, survive=survive) for num in (fewer, more))
    assert first.needed_gpus <= second.needed_gpus
    assert all(a.needed_gpus <= b.needed_gpus for a, b in zip(first.regions, second.regions, strict=True))


@given(sessions, sessions, shares, st.integers(0, 3))
def test_other_numbers_of_sessions_need_what_their_own_plan_does(
    one: int, other: int, regions: tuple[Region, ...], surge: int
) -> None:
    requirements = {"regions": regions, "surge": surge, "survive": 1}
    assert abs(gpus_for(plan(one, **requirements), other) - plan(other, **requirements).needed_gpus) <= len(
        regions
    )  # rounding
    assert gpus_for(plan(one, **requirements), one) == plan(one, **requirements).needed_gpus


@given(sessions, shares, st.integers(0, 5))
def test_spare_and_surge_never_take_gpus_away(num: int, regions: tuple[Region, ...], surge: int) -> None:
    bare = plan(num, regions=regions)
    spare = plan(num, regions=regions, survive=1)
    surging = plan(num, regions=regions, surge=surge)
    assert spare.needed_gpus >= bare.needed_gpus
    assert surging.needed_gpus == bare.needed_gpus + surge * len(regions)


@given(sessions, shares, st.integers(0, 2))
def test_a_sized_fleet_answers_in_time_also_without_any_regions_that_it_survives(
    num: int, regions: tuple[Region, ...], survive: int
) -> None:
    survive = min(survive, len(regions) - 1)
    found = plan(num, regions=regions, survive=survive)
    server_per_s = found.capacity.requests_per_s
    assert all(region.holds and 0 < region.busy <= 1 + 1e-9 for region in found.regions)
    assert sum(region.requests_per_s for region in found.regions) == pytest.approx(found.demand.requests_per_s)
    for lost in itertools.combinations(found.regions, survive):
        share = sum(region.share for region in lost)
        for region in found.regions:
            if region not in lost:
                assert region.requests_per_s / (1 - share) <= region.gpus * server_per_s * (1 + 1e-9)


@given(sessions, st.floats(0.01, 100), st.floats(0.01, 1))
def test_units_fit(num: int, price: float, load: float) -> None:
    assumptions = Assumptions(Users(num), money=Money(gpu_usd_hour=price, mean_load=load))
    found = plan_of(assumptions, FleetRequirements(THREE))
    assert found.usd_per_hour == pytest.approx(found.gpus * price)
    assert found.usd_per_shown * found.shown_per_hour == pytest.approx(found.usd_per_hour)
    assert found.shown_per_hour == pytest.approx(found.demand.shown_per_session_hour * num * load)
    assert found.usd_per_request / found.usd_per_shown == pytest.approx(found.demand.shown_share)
    dearer = plan_of(
        replace(assumptions, money=replace(assumptions.money, gpu_usd_hour=2 * price)), FleetRequirements(THREE)
    )
    assert dearer.usd_per_shown == pytest.approx(2 * found.usd_per_shown)


@given(sessions, st.floats(0.1, 10_000), st.integers(1, 8))
def test_a_measured_server_replaces_the_model_of_one(num: int, rate: float, gpus_per_server: int) -> None:
    assumptions = Assumptions(Users(num))
    assumptions = replace(assumptions, gpu=replace(assumptions.gpu, gpus_per_server=gpus_per_server, slots=1))
    found = plan_of(assumptions, FleetRequirements((Region("office", 1.0),)), Measured(rate, 0.25, "measured"))
    servers = math.ceil(found.demand.requests_per_s / rate)
    assert found.needed_gpus == servers * gpus_per_server
    assert found.demand.shown_share == 0.25
    assert math.isnan(found.regions[0].busy_if_lost)


def test_the_case_of_twelve_thousand_sessions() -> None:
    """12,000 sessions, three regions of four GPUs, $0.0003: see docs/capacity.md, which states these figures."""
    sized = plan(12_000)
    assert (sized.needed_gpus, sized.capacity.limit) == (24, "computed tokens")
    assert sized.demand.requests_per_s == pytest.approx(2008, abs=1)
    assert sized.capacity.requests_per_s == pytest.approx(95, abs=1)
    assert plan(12_000, survive=1).needed_gpus == 33

    given_fleet = plan(12_000, gpus_per_region=4)
    assert given_fleet.gpus == 12
    assert given_fleet.usd_per_hour == 36
    assert not any(region.holds for region in given_fleet.regions)
    assert given_fleet.regions[0].busy == pytest.approx(1.75, abs=0.01)
    assert given_fleet.usd_per_shown == pytest.approx(0.000171, abs=0.000001)

    levers = {lever.name: lever.value for lever in cost_levers(given_fleet, 0.0003)}
    assert levers["shown_per_session_mean_hour"] == pytest.approx(10)  # 12 x $3 / $0.0003 / 12,000
    assert levers["mean_load"] == pytest.approx(0.18, abs=0.005)
    # The case's older figures, 8 GPUs, 3,000 sessions and $0.0008, follow from the same 10 and the same price.
    assert 8 * given_fleet.assumptions.money.gpu_usd_hour / (3000 * 10) == pytest.approx(0.0008)


def test_each_lever_gives_the_target() -> None:
    found = plan(12_000)
    for lever in cost_levers(found, 0.0002):
        if lever.name in {"gpu_usd_hour", "mean_load"}:
            money = replace(found.assumptions.money, **{lever.name: lever.value})
            changed = plan_of(replace(found.assumptions, money=money), found.requirements)
            assert changed.usd_per_shown == pytest.approx(0.0002)
    impossible = [lever.name for lever in cost_levers(found, found.usd_per_shown / 100) if not lever.is_possible]
    assert impossible == ["mean_load"]


def test_a_fleet_that_is_too_small_shows_fewer() -> None:
    small, enough = plan(12_000, gpus_per_region=1), plan(12_000, gpus_per_region=10)
    assert small.shown_per_hour < enough.shown_per_hour / 2
    assert enough.shown_per_hour == plan(12_000, gpus_per_region=50).shown_per_hour


def test_variations_are_the_plans_at_the_estimates() -> None:
    found = plan(12_000)
    every = {each.name: each for each in variations(found)}
    price = every["gpu_usd_hour"]
    assert price.at_high.usd_per_shown / price.at_low.usd_per_shown == pytest.approx(price.high / price.low)
    assert every["new_prompt_tokens"].at_low.needed_gpus < every["new_prompt_tokens"].at_high.needed_gpus
    factors = [each.cost_factor for each in variations(found)]
    assert factors == sorted(factors, reverse=True)
    measured = plan_of(found.assumptions, found.requirements, Measured(100.0, 0.2, "measured"))
    assert not {"slots", "text_share", "new_prompt_tokens"} & {each.name for each in variations(measured)}


def test_estimates_that_leave_no_time_for_the_queue_are_left_out() -> None:
    found = plan(12_000)
    tight = replace(found.assumptions, answers=replace(found.assumptions.answers, within_ms=60.0))
    names = {each.name for each in variations(plan_of(tight, found.requirements))}
    assert "first_token_ms" not in names
    assert "slots" in names


@pytest.mark.parametrize(
    ("requirements", "message"),
    [
        ({"regions": (Region("a", 0.5), Region("b", 0.4))}, "region: shares must come to 1, got a=0.5, b=0.4, which"),
        ({"regions": (Region("a", 1.5), Region("b", -0.5))}, "region: shares must be above 0, got a=1.5, b=-0.5"),
        ({"regions": (Region("a", 0.5), Region("a", 0.5))}, "region: names must differ, got a=0.5, a=0.5"),
        ({"regions": (Region("a", math.nan),)}, "region: shares must be above 0, got a=nan"),
        ({"regions": ()}, "region: shares must be above 0, got none"),
        ({"survive": 3}, "survive: must be from 0 to 2, one less than there are regions, got 3"),
        ({"regions": (Region("a", 1.0),), "survive": 1}, "survive: must be from 0 to 0, one less than there are regio"),
        ({"surge": -1}, "surge: must be from 0 to 1000, got -1"),
        ({"gpus_per_region": 0}, "gpus_per_region: must be a multiple of gpus_per_server (1) and at least 1, got 0"),
    ],
)
def test_impossible_requirements_are_refused(requirements: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        plan(100, **requirements)
