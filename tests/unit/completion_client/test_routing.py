"""The choice of a replica: rendezvous hashing, and replicas that are passed over."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion_client import Endpoint, EndpointError, Preference, RoutingSettings, parse_endpoints, rendezvous_order
from tests.support.examples import examples

A, B, C = parse_endpoints("a:1,b:2,c:3")
SETTINGS = RoutingSettings(pass_over_min_s=1.0, pass_over_max_s=30.0, overloads=3)
USERS = [f"user-{number}" for number in range(10_000)]

GOLDEN = {
    ("ada", ""): ["2", "3", "1"],
    ("ada", "acme"): ["2", "1", "3"],
    ("grace", ""): ["1", "3", "2"],
    ("user-1", "t"): ["3", "2", "1"],
}

addresses = st.lists(st.from_regex(r"[a-z]{1,8}:[1-9][0-9]{0,4}", fullmatch=True), min_size=2, max_size=9, unique=True)


def preference() -> Preference:
    return Preference((A, B, C), SETTINGS)


def test_a_list_of_addresses_is_parsed() -> None:
    assert parse_endpoints("a:1, b:2,unix:/run/c") == (Endpoint("a:1"), Endpoint("b:2"), Endpoint("unix:/run/c"))


@pytest.mark.parametrize("text", ["", "a:1,", ",a:1", "a:1,,b:2", "a:1,b:2,a:1"])
def test_a_list_with_gaps_or_repeats_is_refused(text: str) -> None:
    with pytest.raises(EndpointError, match="address"):
        parse_endpoints(text)


def test_no_replica_or_one_twice_is_refused() -> None:
    for order in ((), (A, B, A)):
        with pytest.raises(EndpointError):
            Preference(order)


def test_the_order_is_the_same_in_every_process() -> None:
    """These were written down once. Another hash would move every user of every editor that is not updated."""
    replicas = parse_endpoints("10.0.0.1:50051,10.0.0.2:50051,10.0.0.3:50051")
    found = {name: [each.address[7] for each in rendezvous_order(replicas, *name)] for name in GOLDEN}
    assert found == GOLDEN


@given(addresses=addresses, user=st.text(), tenant=st.text(), data=st.data())
@settings(max_examples=examples(2))
def test_the_order_of_the_list_does_not_matter(
    addresses: list[str], user: str, tenant: str, data: st.DataObject
) -> None:
    endpoints = [*map(Endpoint, addresses)]
    order = rendezvous_order(endpoints, user, tenant)
    assert sorted(each.address for each in order) == sorted(addresses)
    assert rendezvous_order(data.draw(st.permutations(endpoints)), user, tenant) == order


@given(addresses=addresses, user=st.text(), tenant=st.text(), data=st.data())
@settings(max_examples=examples(2))
def test_a_lost_replica_leaves_the_order_of_the_others(
    addresses: list[str], user: str, tenant: str, data: st.DataObject
) -> None:
    endpoints = [*map(Endpoint, addresses)]
    lost = data.draw(st.sampled_from(endpoints))
    order = rendezvous_order(endpoints, user, tenant)
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
        while not found.is_usable(A, now_s):
            now_s += 0.5
        waits_s.append(now_s - start_s)
    assert waits_s == [1, 2, 4, 8, 16, 30, 30, 30]
    found.answered(A)
    found.refused(A, now_s)
    assert found.is_usable(A, now_s + 1.0)


def test_the_servers_own_time_counts_up_to_the_longest() -> None:
    found = preference()
    found.refused(A, 0.0, retry_after_s=5.0)
    assert (found.choose(4.9), found.choose(5.0)) == (B, A)
    found.refused(B, 0.0, retry_after_s=3600.0)
    assert not found.is_usable(B, 29.9)
    assert found.is_usable(B, 30.0)


def test_calls_that_fail_together_count_as_one_refusal() -> None:
    found = preference()
    for _ in range(50):
        found.refused(A, 0.0)
    assert found.is_usable(A, 1.0)


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


def test_all_are_tried_the_soonest_first_when_none_is_usable() -> None:
    found = preference()
    found.refused(A, 0.0, retry_after_s=9.0)
    found.refused(B, 0.0, retry_after_s=2.0)
    found.refused(C, 0.0, retry_after_s=5.0)
    assert found.candidates(0.0) == [B, C, A]
    assert found.candidates(6.0) == [B, C, A]
    assert found.candidates(9.0) == [A, B, C]


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["refused", "overloaded", "answered"]),
            st.sampled_from([A, B, C]),
            st.floats(0.0, 100.0),
            st.floats(0.0, 5.0),
        )
    )
)
@settings(max_examples=examples(4))
def test_any_history_is_forgotten(events: list[tuple[str, Endpoint, float, float]]) -> None:
    """Every replica is offered at any time, and all are usable again after the longest time."""
    found, now_s = preference(), 0.0
    for kind, endpoint, retry_after_s, step_s in events:
        now_s += step_s
        if kind == "answered":
            found.answered(endpoint)
        else:
            getattr(found, kind)(endpoint, now_s, retry_after_s)
        assert sorted(found.candidates(now_s), key=str) == sorted([A, B, C], key=str)
        usable = [each for each in (A, B, C) if found.is_usable(each, now_s)]
        assert found.candidates(now_s)[: len(usable)] == usable
    assert found.candidates(now_s + SETTINGS.pass_over_max_s) == [A, B, C]
