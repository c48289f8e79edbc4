"""The choice of a server: its distance, its health, its silence, and the order in which one user tries them all."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from completion.v1 import completion_pb2 as pb
from completion_client import (
    Endpoint,
    EndpointError,
    Health,
    Regions,
    RegionSettings,
    parse_endpoints,
    rendezvous_order,
)
from completion_client.distances import Distances
from completion_client.health import CheckResult
from completion_client.replicas import Replicas
from completion_client.silence import SilenceGuard
from completion_client.watcher import Watcher
from loadtest.simulation import virtual_time
from tests.support.examples import examples
from tests.support.replica_fakes import Clock

A, B, C, D = ENDPOINTS = parse_endpoints("a:1,b:2,c:3,d:4")
USERS = [f"user-{number}" for number in range(2_000)]
SPREAD_S = 30.0
GOLDEN = {
    ("ada", ""): ["2", "3", "1"],
    ("ada", "acme"): ["2", "1", "3"],
    ("grace", ""): ["1", "3", "2"],
    ("user-1", "t"): ["3", "2", "1"],
}
ANSWERED, DOWN = CheckResult(None), CheckResult(None, "no connection")
OVERLOADED = pb.End(finish_reason=pb.FINISH_REASON_SHED, shed_reason=pb.SHED_REASON_OVERLOAD)
STOPPED = pb.End(finish_reason=pb.FINISH_REASON_STOP)


def test_a_list_of_addresses_is_parsed() -> None:
    assert parse_endpoints("a:1, b:2,unix:/run/c") == (Endpoint("a:1"), Endpoint("b:2"), Endpoint("unix:/run/c"))
    for text in ("", "a:1,", "a:1,,b:2", "a:1,b:2,a:1"):
        with pytest.raises(EndpointError, match="address"):
            parse_endpoints(text)
    for endpoints in ((), (A, B, A)):
        with pytest.raises(EndpointError, match="at least one endpoint is needed, each once"):
            Regions(endpoints)


def test_the_order_is_the_same_in_every_process() -> None:
    """These were written down once. Another hash would move every user of every editor that is not updated."""
    replicas = parse_endpoints("10.0.0.1:50051,10.0.0.2:50051,10.0.0.3:50051")
    assert {name: [each.address[7] for each in rendezvous_order(replicas, *name)] for name in GOLDEN} == GOLDEN


@given(user=st.text(), tenant=st.text(), order=st.permutations(ENDPOINTS), lost=st.sampled_from(ENDPOINTS))
@settings(max_examples=examples(1))
def test_neither_the_order_of_the_list_nor_a_lost_replica_changes_the_order_of_the_others(
    user: str, tenant: str, order: list[Endpoint], lost: Endpoint
) -> None:
    found = rendezvous_order(ENDPOINTS, user, tenant)
    assert rendezvous_order(order, user, tenant) == found
    order.remove(lost)
    assert rendezvous_order(order, user, tenant) == tuple(each for each in found if each != lost)


def test_users_are_spread_evenly_and_those_of_another_tenant_are_others() -> None:
    first, second = ({user: rendezvous_order(ENDPOINTS, user, tenant)[0] for user in USERS} for tenant in "ab")
    assert max(Counter(first.values()).values()) <= 1.2 * len(USERS) / len(ENDPOINTS)
    assert 0.65 < sum(first[user] != second[user] for user in USERS) / len(USERS) < 0.85


def replicas_of(clock: Clock, user: str = "ada", endpoints: tuple[Endpoint, ...] = (A, B, C)) -> Replicas:
    """Return the view of a user who prefers the endpoints in this order, all of one region."""
    regions = Regions(endpoints, settings=RegionSettings(return_spread_s=SPREAD_S), seed="seed", now=clock)
    return Replicas(regions, user, order=lambda found, *_: tuple(found))


async def test_a_replica_that_goes_on_refusing_is_passed_over_for_longer() -> None:
    clock = Clock()
    found = replicas_of(clock)
    waits_s = []
    for retry_after_s in (0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 3600.0):
        found.pass_over(A, "full", retry_after_s)
        found.pass_over(A, "full", retry_after_s)  # of a call at the same time
        assert (found.best(), found.why_not(A)) == (B, "full")
        waits_s.append(found.usable_at_s(A) - clock.now_s)
        clock.now_s = found.usable_at_s(A)
        assert (found.best(), found.why_not(A)) == (A, "")
    assert waits_s == [1, 2, 5, 8, 16, 30, 30]
    found.note_end(found.regions.connections.get(A), STOPPED, 0.1)
    found.pass_over(A, "full")
    assert found.usable_at_s(A) - clock.now_s == 1, "an answer makes the next refusal the first"


async def test_overloads_count_only_without_an_answer_between_them() -> None:
    found = replicas_of(Clock())
    connection = found.regions.connections.get(A)
    for end in (OVERLOADED, OVERLOADED, STOPPED, OVERLOADED, OVERLOADED):
        assert not found.note_end(connection, end, 0.1), "one shed request is no reason to ask another server"
        assert found.best() == A
    found.note_end(connection, OVERLOADED, 0.1)
    assert found.best() == B


WINDOWED = RegionSettings(change_after_s=10.0, window_s=4.0)
FIRST = 3
"""Samples that settle at once."""
bases_ms = st.lists(st.floats(1.0, 300.0), min_size=4, max_size=4, unique=True)


def distances(*round_trips_ms: float) -> Distances:
    """Return the distances of A, B, C and D, each measured often enough to have settled."""
    found = Distances(ENDPOINTS, WINDOWED)
    for endpoint, round_trip_ms in zip(ENDPOINTS, round_trips_ms, strict=False):
        for _ in range(FIRST):
            found.measured(endpoint, round_trip_ms / 1000, 0.0)
    return found


def test_tiers_go_by_the_shortest_of_the_first_samples_and_those_not_measured_come_last() -> None:
    found = distances(70.0, 5.0, 140.0)
    assert found.tiers == ((B,), (A,), (C,), (D,))
    found.measured(D, 0.001, 0.0)
    assert [found.tier(each) for each in ENDPOINTS] == [1, 0, 2, 0]
    assert found.tiers[0] == (B, D), "in the given order"


@pytest.mark.parametrize(("lasts_s", "changes"), [(7, False), (20, True)])
def test_a_change_moves_users_when_it_has_lasted(lasts_s: int, changes: bool) -> None:
    found = distances(5.0, 70.0)
    before = found.tiers
    changed_at_s = [at_s for at_s in range(60) if _measures(found, 0.15 if at_s % 30 < lasts_s else 0.005, at_s + 1.0)]
    assert bool(changed_at_s) is changes
    assert (found.tiers is before) is not changes
    if changes:
        assert 10 <= changed_at_s[0] <= 10 + WINDOWED.window_s


def _measures(found: Distances, round_trip_s: float, now_s: float) -> bool:
    before = found.tiers
    found.measured(A, round_trip_s, now_s)
    return found.tiers is not before


@given(bases=bases_ms, samples=st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 0.999)), max_size=60))
@settings(max_examples=examples(1))
def test_noise_below_the_margin_moves_nobody(bases: list[float], samples: list[tuple[int, float]]) -> None:
    found = distances(*bases)
    before = found.tiers
    for now_s, (number, noise) in enumerate(samples):
        base_s = bases[number] / 1000
        found.measured(ENDPOINTS[number], base_s + noise * WINDOWED.margin_s(base_s), float(now_s))
    assert found.tiers is before


@given(bases=bases_ms)
@settings(max_examples=examples(1))
def test_every_tier_spans_at_most_its_margin_and_the_next_begins_behind_it(bases: list[float]) -> None:
    tiers = [[bases[ENDPOINTS.index(each)] / 1000 for each in tier] for tier in distances(*bases).tiers]
    assert sorted(each for tier in tiers for each in tier) == sorted(each / 1000 for each in bases)
    assert all(max(tier) <= min(tier) + WINDOWED.margin_s(min(tier)) for tier in tiers)
    assert all(min(after) > min(tier) + WINDOWED.margin_s(min(tier)) for tier, after in pairwise(tiers))


def test_users_return_evenly_over_the_time_and_each_time_in_another_order() -> None:
    clock = Clock()
    watcher = replicas_of(clock).regions.watchers[A]
    orders = []
    for clock.now_s in (100.0, 200.0):
        watcher.note(DOWN)
        assert watcher.usable_at_s("ada") == math.inf
        watcher.note(ANSWERED)
        times_s = {user: watcher.usable_at_s(user) - clock.now_s for user in USERS}
        per_s = Counter(map(int, times_s.values()))
        assert sorted(per_s) == list(range(int(SPREAD_S)))
        assert max(per_s.values()) < 2 * len(USERS) / SPREAD_S
        orders.append(sorted(USERS, key=times_s.__getitem__))
    assert orders[0] != orders[1]


def test_the_order_is_by_tier_and_within_a_tier_by_the_users_hash() -> None:
    regions = Regions(ENDPOINTS)
    for endpoint, round_trip_s in zip(ENDPOINTS, (0.14, 0.005, 0.07, 0.006), strict=True):
        regions.distances.measured(endpoint, round_trip_s, 0.0)
    orders = {user: Replicas(regions, user, "t").order for user in USERS[:50]}
    for user, order in orders.items():
        assert order == (*(each for each in rendezvous_order(ENDPOINTS, user, "t") if each in (B, D)), C, A)
    assert {each[0] for each in orders.values()} == {B, D}


events = st.lists(
    st.tuples(st.sampled_from((ANSWERED, DOWN, "full")), st.sampled_from(ENDPOINTS), st.floats(0.0, 20.0)), max_size=60
)


@given(events=events, user=st.sampled_from(USERS))
@settings(max_examples=examples(1))
def test_a_failed_endpoint_is_never_chosen_while_another_is_healthy(
    events: list[tuple[CheckResult | str, Endpoint, float]], user: str
) -> None:
    clock = Clock()
    found = replicas_of(clock, user, ENDPOINTS)
    watchers = found.regions.watchers
    for event, endpoint, step_s in events:
        clock.now_s += step_s
        if isinstance(event, str):
            found.pass_over(endpoint, event)
        else:
            watchers[endpoint].note(event)
        candidates = found.candidates()
        assert sorted(candidates, key=str) == sorted(ENDPOINTS, key=str)
        is_healthy = [watchers[each].health is Health.USABLE for each in candidates]
        assert is_healthy == sorted(is_healthy, reverse=True)
        assert found.best() == candidates[0]
        usable = [each for each in found.order if found.is_usable(each)]
        assert candidates[: len(usable)] == usable
        times_s = [found.usable_at_s(each) for each in candidates[len(usable) :]]
        assert times_s == sorted(times_s)
    for watcher in watchers.values():
        watcher.note(ANSWERED)
    clock.now_s += SPREAD_S
    assert tuple(found.candidates()) == found.order


def checked_at_s(act: Callable[[Watcher, float], object]) -> list[float]:
    """Return when a healthy endpoint is checked in a minute; `act` is called a hundred times a second."""
    times_s: list[float] = []

    class Connections:
        def get(self, _endpoint: Endpoint) -> "Connections":
            return self

        async def check(self, _timeout_s: float) -> CheckResult:
            times_s.append(round(asyncio.get_running_loop().time(), 6))
            return CheckResult(0.01)

    async def run() -> None:
        now, found = asyncio.get_running_loop().time, RegionSettings(check_interval_s=15.0)
        connections: Any = Connections()
        watcher = Watcher(A, connections, Distances((A,), found), found, "seed", now)
        watching = asyncio.create_task(watcher.run(lambda: None))
        while now() < 60.0:
            act(watcher, now())
            await asyncio.sleep(0.01)
        watching.cancel()

    virtual_time.run(run())
    return times_s


def test_the_first_checks_of_a_quiet_endpoint_are_quick_and_the_later_ones_are_not() -> None:
    times_s = checked_at_s(lambda _watcher, _now_s: None)
    assert times_s[2] < 0.4
    assert times_s[3] > 7.0
    assert 4 <= len(times_s) <= 11


def test_answered_requests_count_as_checks_but_a_loss_is_checked_at_once() -> None:
    def ask(watcher: Watcher, now_s: float) -> None:
        watcher.measured(0.01)
        if now_s == pytest.approx(20.0):
            watcher.check_now()

    assert checked_at_s(ask) == pytest.approx([0.0, 20.0])


LIMIT_S, WAIT_S = 1.0, 5.0


@dataclass
class Watched:
    """A guard whose server answers no question before `alive_from_s`, and what the guard said when.

    The server sends something to others at `sent_at_s`.
    """

    wait_s: float | None = WAIT_S
    alive_from_s: float = 1000.0
    sent_at_s: float = -1.0
    asked_at_s: list[float] = field(default_factory=list)
    said: list[tuple[str, float]] = field(default_factory=list)
    guard: SilenceGuard = field(init=False)

    def __post_init__(self) -> None:
        self.guard = SilenceGuard(self._alive_at_s, self._on_silent, self._on_given_up)

    async def _alive_at_s(self, since_s: float, within_s: float) -> float | None:
        if self.sent_at_s > since_s:
            return self.sent_at_s
        self.asked_at_s.append(self._now_s())
        if self._now_s() >= self.alive_from_s:
            return asyncio.get_running_loop().time()
        await asyncio.sleep(within_s)
        return None

    def _on_silent(self) -> float | None:
        self.said.append(("silent", self._now_s()))
        return None if self.wait_s is None else self._now_s() + self.wait_s

    def _on_given_up(self, silence_s: float) -> None:
        self.said.append((f"given up after {silence_s:.0f} s", self._now_s()))

    def _now_s(self) -> float:
        return round(asyncio.get_running_loop().time(), 6)


async def nothing_comes(_watched: Watched) -> None:
    pass


async def goes_on_once(watched: Watched) -> None:
    await asyncio.sleep(3.0)
    assert watched.guard.is_silent
    watched.guard.heard_nowait()
    assert not watched.guard.is_silent


async def ends_while_silent(watched: Watched) -> None:
    await asyncio.sleep(3.0)
    watched.guard.stop_nowait()
    assert watched.guard.is_silent


async def is_slow(watched: Watched) -> None:
    await asyncio.sleep(8.0)
    watched.guard.stop_nowait()
    assert watched.asked_at_s == [0.5, 1.5, 3.5, 7.5], "less and less often"


async def has_less_time_later(watched: Watched) -> None:
    await asyncio.sleep(0.1)
    watched.guard.expect_nowait(0.4)
    watched.guard.expect_nowait(10.0)


@pytest.mark.parametrize(
    ("script", "fields", "said"),
    [
        (nothing_comes, {}, [("silent", 1.0), ("given up after 6 s", 6.0)]),
        (nothing_comes, {"wait_s": None}, [("silent", 1.0)]),
        (nothing_comes, {"sent_at_s": 0.45, "wait_s": None}, [("silent", 1.45)]),
        (is_slow, {"alive_from_s": 0.5}, []),
        (goes_on_once, {}, [("silent", 1.0), ("silent", 4.0), ("given up after 6 s", 9.0)]),
        (ends_while_silent, {}, [("silent", 1.0)]),
        (has_less_time_later, {"wait_s": None}, [("silent", 0.4)]),
    ],
)
def test_a_guard_tells_a_silent_server_from_a_slow_one(
    script: Callable[[Watched], Coroutine[Any, Any, None]], fields: dict[str, Any], said: list[tuple[str, float]]
) -> None:
    async def run() -> Watched:
        watched = Watched(**fields)
        watched.guard.expect_nowait(LIMIT_S)
        await script(watched)
        await asyncio.sleep(60.0)
        return watched

    assert virtual_time.run(run()).said == said


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("return_spread_s", -1.0, "must be 0 or more, got -1.0"),
        ("tier_margin_share", math.nan, "must be 0 or more, got nan"),
        ("window_s", math.inf, "must be 0.1 or more, got inf"),
        ("silence_share", 1.5, "must be from 0 to 1, got 1.5"),
        ("silence_min_s", 2.0, "must be at most silence_max_s = 1, got 2"),
        ("race_s", "2", "must be 0 or more, got '2'"),
    ],
)
def test_a_bad_setting_is_named_with_its_limit(name: str, value: object, message: str) -> None:
    with pytest.raises(EndpointError) as caught:
        RegionSettings(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name}: {message}"


def test_silence_is_a_share_of_the_time_that_is_left() -> None:
    settings = RegionSettings(silence_share=0.5, silence_min_s=0.1, silence_max_s=1.0)
    assert [settings.silence_s(left_s) for left_s in (None, 10.0, 0.6, 0.01)] == [1.0, 1.0, 0.3, 0.1]
