"""The choice of a server: its distance, its failures, and the order in which one user tries them all."""

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_client import (
    Endpoint,
    EndpointError,
    Regions,
    RegionSettings,
    RoutingSettings,
    parse_endpoints,
    rendezvous_order,
)
from completion_client.choice import Availability, Health, UserChoice
from completion_client.distances import Distances
from tests.support.examples import examples

A, B, C, D = parse_endpoints("a:1,b:2,c:3,d:4")
SETTINGS = RoutingSettings(pass_over_min_s=1.0, pass_over_max_s=30.0, overloads=3)
USERS = [f"user-{number}" for number in range(10_000)]

GOLDEN = {
    ("ada", ""): ["2", "3", "1"],
    ("ada", "acme"): ["2", "1", "3"],
    ("grace", ""): ["1", "3", "2"],
    ("user-1", "t"): ["3", "2", "1"],
}

addresses = st.lists(st.from_regex(r"[a-z]{1,8}:[1-9][0-9]{0,4}", fullmatch=True), min_size=2, max_size=9, unique=True)


def preference() -> UserChoice:
    """Return the choice of a user who prefers A, then B, then C, all of one region."""
    availability = Availability((A, B, C), 0.0, "seed")
    distances = Distances((A, B, C), RegionSettings())
    return UserChoice(distances, availability, "ada", settings=SETTINGS, order=lambda found, *_: tuple(found))


def test_a_list_of_addresses_is_parsed() -> None:
    assert parse_endpoints("a:1, b:2,unix:/run/c") == (Endpoint("a:1"), Endpoint("b:2"), Endpoint("unix:/run/c"))


@pytest.mark.parametrize("text", ["", "a:1,", ",a:1", "a:1,,b:2", "a:1,b:2,a:1"])
def test_a_list_with_gaps_or_repeats_is_refused(text: str) -> None:
    with pytest.raises(EndpointError, match="address"):
        parse_endpoints(text)
    for endpoints in ((), (A, B, A)):
        with pytest.raises(EndpointError, match="at least one endpoint is needed, each once"):
            Regions(endpoints)


def test_the_order_is_the_same_in_every_process() -> None:
    """These were written down once. Another hash would move every user of every editor that is not updated."""
    replicas = parse_endpoints("10.0.0.1:50051,10.0.0.2:50051,10.0.0.3:50051")
    found = {name: [each.address[7] for each in rendezvous_order(replicas, *name)] for name in GOLDEN}
    assert found == GOLDEN


@given(addresses=addresses, user=st.text(), tenant=st.text(), data=st.data())
@settings(max_examples=examples(4))
def test_neither_the_order_of_the_list_nor_a_lost_replica_changes_the_order_of_the_others(
    addresses: list[str], user: str, tenant: str, data: st.DataObject
) -> None:
    endpoints = [*map(Endpoint, addresses)]
    order = rendezvous_order(endpoints, user, tenant)
    assert sorted(each.address for each in order) == sorted(addresses)
    assert rendezvous_order(data.draw(st.permutations(endpoints)), user, tenant) == order
    lost = data.draw(st.sampled_from(endpoints))
    left = rendezvous_order([each for each in endpoints if each != lost], user, tenant)
    assert left == tuple(each for each in order if each != lost)


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_users_are_spread_evenly_and_few_move(num: int) -> None:
    endpoints = [Endpoint(f"10.0.0.{number}:50051") for number in range(num)]
    first = {user: rendezvous_order(endpoints, user)[0] for user in USERS}
    counts = Counter(first.values())
    assert max(counts.values()) <= 1.1 * len(USERS) / num
    moved = [user for user in USERS if rendezvous_order(endpoints[1:], user)[0] != first[user]]
    assert len(moved) == counts[endpoints[0]]
    second = Counter(rendezvous_order(endpoints[1:], user)[0] for user in moved)
    assert max(second.values()) <= 1.2 * len(moved) / (num - 1)


def test_tenants_have_users_of_their_own() -> None:
    endpoints = [Endpoint(f"10.0.0.{number}:50051") for number in range(4)]
    apart = sum(
        rendezvous_order(endpoints, user, "a")[0] != rendezvous_order(endpoints, user, "b")[0] for user in USERS
    )
    assert 0.7 < apart / len(USERS) < 0.8
    assert rendezvous_order(endpoints, "ab", "c") != rendezvous_order(endpoints, "b", "ca")


def test_the_first_is_chosen_until_it_refuses() -> None:
    found = preference()
    assert found.choose(0.0) == A
    found.refused(A, 0.0)
    assert [found.choose(now_s) for now_s in (0.0, 0.99, 1.0)] == [B, B, A]


def test_a_replica_that_goes_on_refusing_is_passed_over_for_longer() -> None:
    found = preference()
    now_s, waits_s = 0.0, []
    for _ in range(8):
        found.refused(A, now_s)
        start_s = now_s
        while found.usable_at_s(A, 0.0) > now_s:
            now_s += 0.5
        waits_s.append(now_s - start_s)
    assert waits_s == [1, 2, 4, 8, 16, 30, 30, 30]
    found.answered(A)
    found.refused(A, now_s)
    assert found.usable_at_s(A, 0.0) <= now_s + 1.0


def test_the_servers_own_time_counts_up_to_the_longest() -> None:
    found = preference()
    found.refused(A, 0.0, retry_after_s=5.0)
    assert (found.choose(4.9), found.choose(5.0)) == (B, A)
    found.refused(B, 0.0, retry_after_s=3600.0)
    assert found.usable_at_s(B, 0.0) > 29.9
    assert found.usable_at_s(B, 0.0) <= 30.0


def test_overloads_count_only_without_an_answer_between_them() -> None:
    found = preference()
    for _ in range(10):
        found.overloaded(A, 0.0)
        found.overloaded(A, 0.0)
        found.answered(A)
    assert found.choose(0.0) == A
    for _ in range(3):
        found.overloaded(A, 0.0)
    assert found.choose(0.0) == B


WINDOWED = RegionSettings(change_after_s=10.0, window_s=4.0)
FIRST = 3
"""Samples that settle at once."""


def distances(**round_trips_ms: float) -> Distances:
    """Return the distances of A, B, C and D, each measured often enough to have settled."""
    found = Distances((A, B, C, D), WINDOWED)
    for endpoint in (A, B, C, D):
        if endpoint.address[0] in round_trips_ms:
            for _ in range(FIRST):
                found.measured(endpoint, round_trips_ms[endpoint.address[0]] / 1000, 0.0)
    return found


def test_tiers_go_by_distance_and_those_not_measured_come_last() -> None:
    assert distances(a=70.0, b=5.0, d=140.0).tiers == ((B,), (A,), (D,), (C,))


def test_first_samples_settle_at_once_and_the_shortest_counts() -> None:
    found = Distances((A, B), WINDOWED)
    assert found.measured(A, 0.2, 0.0)
    assert found.measured(B, 0.1, 0.0)
    assert found.tiers == ((B,), (A,))
    assert found.measured(A, 0.005, 0.1)
    assert found.tiers == ((A,), (B,))
    assert found.version == 3


def test_a_short_change_changes_nothing() -> None:
    found = distances(a=40.0, b=70.0)
    version = found.version
    for now_s in range(60):  # 9 s near, then far again until the near samples have left the window
        found.measured(B, 0.02 if now_s % 20 < 7 else 0.07, float(now_s))
    assert found.version == version


def test_a_longer_way_is_noticed_when_the_window_has_passed() -> None:
    found = distances(a=5.0, b=70.0)
    changed_at_s = next(now_s for now_s in range(60) if found.measured(A, 0.15, 1.0 + now_s))
    assert 10 <= changed_at_s <= 10 + WINDOWED.window_s
    assert found.tiers[:2] == ((B,), (A,))


base_ms = st.floats(1.0, 300.0)


@given(bases=st.lists(base_ms, min_size=4, max_size=4), data=st.data())
@settings(max_examples=examples(2))
def test_noise_below_the_margin_moves_nobody(bases: list[float], data: st.DataObject) -> None:
    found = distances(**dict(zip("abcd", bases, strict=True)))
    version = found.version
    noise = st.floats(0.0, 1.0)
    for now_s in range(60):
        endpoint = data.draw(st.sampled_from((A, B, C, D)))
        base = bases["abcd".index(endpoint.address[0])]
        margin = max(WINDOWED.change_margin_ms, WINDOWED.change_margin_share * base)
        found.measured(endpoint, (base + 0.999 * margin * data.draw(noise)) / 1000, float(now_s))
    assert found.version == version


@given(samples=st.lists(st.tuples(st.sampled_from((A, B, C)), st.floats(0.0, 1.0), st.floats(0.01, 5.0)), max_size=200))
@settings(max_examples=examples(2))
def test_no_noise_at_all_changes_tiers_more_often_than_the_settings_allow(
    samples: list[tuple[object, float, float]],
) -> None:
    """Each endpoint changes at most once in `change_after_s`, after its first samples."""
    found, now_s = Distances((A, B, C), WINDOWED), 0.0
    for endpoint, round_trip_s, step_s in samples:
        now_s += step_s
        found.measured(endpoint, round_trip_s, now_s)  # type: ignore[arg-type]
    assert found.version <= 3 * (FIRST + now_s / WINDOWED.change_after_s)


@given(samples=st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 3.0)), min_size=1, max_size=60))
@settings(max_examples=examples(2))
def test_the_minimum_is_that_of_the_last_half_to_whole_window(samples: list[tuple[float, float]]) -> None:
    found, now_s, seen = Distances((A, B), WINDOWED), 0.0, []
    for value, step_s in samples:
        now_s += step_s
        seen.append((value, now_s))
        found.measured(A, value, now_s)
        minimum = found.round_trip_s(A)
        assert minimum is not None
        assert minimum <= min(each for each, at_s in seen if at_s > now_s - WINDOWED.window_s / 2)
        assert minimum >= min(each for each, at_s in seen if at_s >= now_s - WINDOWED.window_s)


@given(bases=st.lists(base_ms, min_size=4, max_size=4, unique=True))
@settings(max_examples=examples(2))
def test_the_first_tier_has_the_nearest_and_every_tier_spans_at_most_its_margin(bases: list[float]) -> None:
    by_endpoint = dict(zip((A, B, C, D), bases, strict=True))
    tiers = distances(**dict(zip("abcd", bases, strict=True))).tiers
    assert sorted(each.address for tier in tiers for each in tier) == ["a:1", "b:2", "c:3", "d:4"]
    nearest = [min(by_endpoint[each] for each in tier) for tier in tiers]
    assert nearest == sorted(nearest)
    for tier in tiers:
        values = [by_endpoint[each] for each in tier]
        margin = max(WINDOWED.tier_margin_ms, WINDOWED.tier_margin_share * min(values))
        assert max(values) - min(values) <= margin * 1.000001
    for before, after in pairwise(tiers):
        margin = max(WINDOWED.tier_margin_ms, WINDOWED.tier_margin_share * min(by_endpoint[e] for e in before))
        assert min(by_endpoint[e] for e in after) > min(by_endpoint[e] for e in before) + margin * 0.999999


NEAR_1, NEAR_2, MIDDLE, FAR = ENDPOINTS = parse_endpoints("near1:1,near2:1,middle:1,far:1")
ROUND_TRIPS_S = {NEAR_1: 0.005, NEAR_2: 0.006, MIDDLE: 0.07, FAR: 0.14}
SPREAD_S = 30.0
FEW_USERS = [f"user-{number}" for number in range(1000)]


def shared() -> tuple[Distances, Availability]:
    distances = Distances(ENDPOINTS, RegionSettings())
    for endpoint, round_trip_s in ROUND_TRIPS_S.items():
        distances.measured(endpoint, round_trip_s, 0.0)
    return distances, Availability(ENDPOINTS, SPREAD_S, "seed")


def test_a_suspected_endpoint_that_answers_is_used_at_once_unless_it_has_failed() -> None:
    availability = Availability(ENDPOINTS, SPREAD_S, "seed")
    assert availability.suspected(FAR, "lost")
    assert not availability.suspected(FAR, "lost")
    assert (availability.health(FAR), availability.why(FAR)) == (Health.SUSPECT, "lost")
    assert availability.usable_at_s(FAR, "ada", 5.0) == math.inf
    assert availability.answered(FAR, 5.0)
    assert availability.usable_at_s(FAR, "ada", 5.0) <= 5.0
    assert availability.why(FAR) == ""
    assert availability.failed(FAR, "no connection")
    assert not availability.failed(FAR, "NOT_SERVING")
    assert not availability.suspected(FAR, "lost")  # a suspicion does not end a failure
    assert (availability.health(FAR), availability.why(FAR)) == (Health.FAILED, "NOT_SERVING")


def test_users_return_evenly_over_the_time_and_each_time_in_another_order() -> None:
    availability = Availability(ENDPOINTS, SPREAD_S, "seed")
    orders = []
    for came_back_at_s in (100.0, 200.0):
        availability.failed(FAR, "no connection")
        availability.answered(FAR, came_back_at_s)
        times_s = {user: availability.usable_at_s(FAR, user, came_back_at_s) - came_back_at_s for user in FEW_USERS}
        assert all(0.0 <= each <= SPREAD_S for each in times_s.values())
        for second in range(30):
            assert 10 <= sum(second <= each < second + 1 for each in times_s.values()) <= 65, second
        orders.append(sorted(FEW_USERS, key=times_s.__getitem__))
    assert orders[0] != orders[1]


def test_the_order_is_by_tier_and_within_a_tier_by_the_users_hash() -> None:
    distances, availability = shared()
    assert distances.tiers == ((NEAR_1, NEAR_2), (MIDDLE,), (FAR,))
    firsts = set()
    for user in FEW_USERS[:50]:
        order = UserChoice(distances, availability, user, "t").order
        assert list(order[:2]) == [each for each in rendezvous_order(ENDPOINTS, user, "t") if each in order[:2]]
        assert order[2:] == (MIDDLE, FAR)
        firsts.add(order[0])
    assert firsts == {NEAR_1, NEAR_2}


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


events = st.lists(
    st.tuples(
        st.sampled_from(["suspected", "failed", "answered", "refused", "overloaded"]),
        st.sampled_from(ENDPOINTS),
        st.floats(0.0, 20.0),
    ),
    max_size=60,
)


@given(events=events, user=st.sampled_from(FEW_USERS))
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
            getattr(choice, kind)(endpoint, now_s)
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
