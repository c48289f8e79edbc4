"""Failures of endpoints, the return of users to them, and the order in which one user tries them."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_client import Endpoint, EndpointError, RegionSettings, parse_endpoints, rendezvous_order
from completion_client.regions.availability import Availability, Health
from completion_client.regions.choice import UserChoice
from completion_client.regions.distances import Distances
from completion_client.regions.silence import SilenceRecord
from tests.support.examples import examples

NEAR_1, NEAR_2, MIDDLE, FAR = ENDPOINTS = parse_endpoints("near1:1,near2:1,middle:1,far:1")
ROUND_TRIPS_S = {NEAR_1: 0.005, NEAR_2: 0.006, MIDDLE: 0.07, FAR: 0.14}
SPREAD_S = 30.0
USERS = [f"user-{number}" for number in range(1000)]


def shared() -> tuple[Distances, Availability]:
    distances = Distances(ENDPOINTS, RegionSettings())
    for endpoint, round_trip_s in ROUND_TRIPS_S.items():
        distances.measured(endpoint, round_trip_s, 0.0)
    return distances, Availability(ENDPOINTS, SPREAD_S, "seed")


def test_a_suspected_endpoint_that_answers_is_used_at_once() -> None:
    availability = Availability(ENDPOINTS, SPREAD_S, "seed")
    assert availability.suspected(FAR, "lost")
    assert not availability.suspected(FAR, "lost")
    assert (availability.health(FAR), availability.why(FAR)) == (Health.SUSPECT, "lost")
    assert availability.usable_at_s(FAR, "ada", 5.0) == math.inf
    assert availability.answered(FAR, 5.0)
    assert availability.usable_at_s(FAR, "ada", 5.0) <= 5.0
    assert availability.why(FAR) == ""


def test_a_suspicion_does_not_end_a_failure() -> None:
    availability = Availability(ENDPOINTS, SPREAD_S, "seed")
    assert availability.failed(FAR, "no connection")
    assert not availability.failed(FAR, "NOT_SERVING")
    assert not availability.suspected(FAR, "lost")
    assert (availability.health(FAR), availability.why(FAR)) == (Health.FAILED, "NOT_SERVING")


def test_users_return_evenly_over_the_time_and_each_time_in_another_order() -> None:
    availability = Availability(ENDPOINTS, SPREAD_S, "seed")
    orders = []
    for came_back_at_s in (100.0, 200.0):
        availability.failed(FAR, "no connection")
        availability.answered(FAR, came_back_at_s)
        times_s = {user: availability.usable_at_s(FAR, user, came_back_at_s) - came_back_at_s for user in USERS}
        assert all(0.0 <= each <= SPREAD_S for each in times_s.values())
        for second in range(30):
            assert 10 <= sum(second <= each < second + 1 for each in times_s.values()) <= 65, second
        orders.append(sorted(USERS, key=times_s.__getitem__))
    assert orders[0] != orders[1]


def test_the_return_is_repeatable_by_its_seed() -> None:
    times_s = []
    for seed in ("one", "one", "two"):
        availability = Availability(ENDPOINTS, SPREAD_S, seed)
        availability.failed(FAR, "no connection")
        availability.answered(FAR, 0.0)
        times_s.append(availability.usable_at_s(FAR, "ada", 0.0))
    assert times_s[0] == times_s[1] != times_s[2]


def test_without_a_spread_all_return_at_once() -> None:
    availability = Availability(ENDPOINTS, 0.0, "seed")
    availability.failed(FAR, "no connection")
    availability.answered(FAR, 7.0)
    assert all(availability.usable_at_s(FAR, user, 7.0) <= 7.0 for user in USERS)


def test_the_order_is_by_tier_and_within_a_tier_by_the_users_hash() -> None:
    distances, availability = shared()
    assert distances.tiers == ((NEAR_1, NEAR_2), (MIDDLE,), (FAR,))
    firsts = set()
    for user in USERS[:50]:
        order = UserChoice(distances, availability, user, "t").order
        assert list(order[:2]) == [each for each in rendezvous_order(ENDPOINTS, user, "t") if each in order[:2]]
        assert order[2:] == (MIDDLE, FAR)
        firsts.add(order[0])
    assert firsts == {NEAR_1, NEAR_2}


def test_with_one_region_the_order_is_that_of_the_hash() -> None:
    distances = Distances(ENDPOINTS, RegionSettings())
    availability = Availability(ENDPOINTS, SPREAD_S, "seed")
    for endpoint in (None, *ENDPOINTS):
        if endpoint is not None:
            distances.measured(endpoint, 0.005, 0.0)
    for user in USERS[:50]:
        assert UserChoice(distances, availability, user, "t").order == rendezvous_order(ENDPOINTS, user, "t")


def test_a_user_leaves_a_failed_endpoint_and_returns_in_its_turn() -> None:
    distances, availability = shared()
    choice = UserChoice(distances, availability, "ada")
    first = choice.choose(0.0)
    availability.failed(first, "no connection")
    assert choice.choose(0.0) == choice.order[1]
    availability.answered(first, 100.0)
    returns_at_s = choice.usable_at_s(first, 100.0)
    assert choice.choose(returns_at_s - 0.01) == choice.order[1]
    assert choice.choose(returns_at_s) == first


def test_what_a_replica_said_to_one_user_is_that_users_alone() -> None:
    distances, availability = shared()
    one, other = (UserChoice(distances, availability, "ada") for _ in range(2))
    first = one.choose(0.0)
    one.standings.refused(first, 0.0)
    assert one.choose(0.5) != first == other.choose(0.5)
    assert one.choose(1.0) == first


def test_the_order_follows_the_measured_distances() -> None:
    distances, availability = shared()
    choice = UserChoice(distances, availability, "ada")
    assert choice.order[2:] == (MIDDLE, FAR)
    distances.measured(FAR, 0.001, 1.0)
    assert FAR in choice.order[:3]
    assert choice.order[3] == MIDDLE


events = st.lists(
    st.tuples(
        st.sampled_from(["suspected", "failed", "answered", "refused", "overloaded"]),
        st.sampled_from(ENDPOINTS),
        st.floats(0.0, 20.0),
    ),
    max_size=60,
)


@given(events=events, user=st.sampled_from(USERS))
@settings(max_examples=examples(4))
def test_a_failed_endpoint_is_never_chosen_while_another_is_healthy(
    events: list[tuple[str, Endpoint, float]], user: str
) -> None:
    distances, availability = shared()
    choice, now_s = UserChoice(distances, availability, user), 0.0
    for kind, endpoint, step_s in events:
        now_s += step_s
        if kind in {"suspected", "failed"}:
            getattr(availability, kind)(endpoint, "a reason")
        elif kind == "answered":
            availability.answered(endpoint, now_s)
        else:
            getattr(choice.standings, kind)(endpoint, now_s)
        candidates = choice.candidates(now_s)
        assert sorted(candidates, key=str) == sorted(ENDPOINTS, key=str)
        is_healthy = [availability.health(each) is Health.USABLE for each in candidates]
        assert is_healthy == sorted(is_healthy, reverse=True)
        assert choice.choose(now_s) == candidates[0]
        usable = [each for each in choice.order if choice.usable_at_s(each, now_s) <= now_s]
        assert candidates[: len(usable)] == usable
        times_s = [choice.usable_at_s(each, now_s) for each in candidates[len(usable) :]]
        assert all(before <= after for before, after in pairwise(times_s))
    for endpoint in ENDPOINTS:
        availability.answered(endpoint, now_s)
    assert tuple(choice.candidates(now_s + SPREAD_S)) == choice.order


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("return_spread_s", -1.0, "return_spread_s: must be 0 or more, got -1.0"),
        ("tier_margin_share", math.nan, "tier_margin_share: must be 0 or more, got nan"),
        ("check_interval_s", 0.0, "check_interval_s: must be 0.01 or more, got 0.0"),
        ("window_s", math.inf, "window_s: must be 0.1 or more, got inf"),
        ("silence_share", 1.5, "silence_share: must be from 0 to 1, got 1.5"),
        ("silence_min_s", 2.0, "silence_min_s: must be at most silence_max_s = 1, got 2"),
        ("users_per_connection", 0, "users_per_connection: must be 1 or more, got 0"),
        ("race_s", "2", "race_s: must be 0 or more, got '2'"),
    ],
)
def test_a_bad_setting_is_named_with_its_limit(name: str, value: object, message: str) -> None:
    with pytest.raises(EndpointError) as caught:
        RegionSettings(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_silence_is_a_share_of_the_time_that_is_left() -> None:
    settings = RegionSettings(silence_share=0.5, silence_min_s=0.1, silence_max_s=1.0)
    assert [settings.silence_s(left_s) for left_s in (None, 10.0, 0.6, 0.01)] == [1.0, 1.0, 0.3, 0.1]


def test_silent_requests_count_until_the_server_shows_life() -> None:
    record = SilenceRecord()
    record.note(1.0, 0.5, 1.2)
    record.note(1.1, 0.5, 1.3)
    assert (record.num_silent, record.began_at_s) == (2, 1.0)
    record.note(5.0, 4.0, 5.2)
    assert (record.num_silent, record.began_at_s) == (1, 5.0), "it was heard between them"
    record.note(4.9, -math.inf, 5.3)
    assert (record.num_silent, record.began_at_s) == (2, 4.9)
