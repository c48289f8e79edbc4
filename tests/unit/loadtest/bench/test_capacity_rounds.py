"""Rounds of the capacity benchmark on scripted servers, and the estimates over rounds."""

import math
import random

import pytest

from loadtest.bench.capacity.rounds import Range, editors, is_another_round_due, is_decided, ratio, run_round
from loadtest.bench.capacity.trials import SHARE, crossing
from loadtest.search import Trial

PROMISE = 0.9


def trial(sessions: int, share: float) -> Trial:
    return Trial(sessions, share >= PROMISE, {SHARE: share})


class Servers:
    """Servers of which each answers all pauses up to a number of editors, and fewer and fewer beyond it."""

    def __init__(self, **serves: float) -> None:
        self.serves = serves
        self.calls: list[tuple[str, int]] = []

    async def run(self, name: str, sessions: int) -> Trial:
        self.calls.append((name, sessions))
        return trial(sessions, min(1.0, 1.0 - 0.1 * math.log2(sessions / self.serves[name])))


async def capacities(servers: Servers, number: int, before: dict[str, list[float]], limits: Range) -> dict[str, float]:
    found = await run_round(number, list(servers.serves), before, limits, servers.run)
    return {name: crossing(trials, PROMISE) for name, trials in found.items()}


async def test_a_round_finds_the_number_at_which_the_promise_breaks() -> None:
    servers = Servers(small=1.5, middle=13, large=50)
    found = await capacities(servers, 0, {}, Range(8, 500))
    # 90% are answered in time at twice the number up to which all are.
    assert found == pytest.approx({"small": 3, "middle": 26, "large": 100}, rel=0.1)


async def test_later_rounds_search_around_the_capacity_of_the_earlier_ones() -> None:
    servers = Servers(one=40)
    for before in ([80.0], [60.0, 100.0], [45.0]):
        servers.calls.clear()
        found = await capacities(servers, 1, {"one": before}, Range(8, 500))
        assert found["one"] == pytest.approx(80, rel=0.05)
        assert len(servers.calls) <= 5
        assert servers.calls[0] == ("one", round(math.exp(sum(map(math.log, before)) / len(before))))


async def test_contestants_take_turns_in_a_rotating_order() -> None:
    firsts = []
    for number in range(3):
        servers = Servers(a=50, b=50, c=50)
        await capacities(servers, number, {}, Range(8, 500))
        order = [name for name, _sessions in servers.calls[:3]]
        assert sorted(order) == ["a", "b", "c"]
        assert servers.calls == [(name, servers.calls[place - place % 3][1]) for place, name in
                                 enumerate(order * (len(servers.calls) // 3))]  # fmt: skip
        firsts.append(order[0])
    assert firsts == ["a", "b", "c"]


async def test_numbers_stay_in_range() -> None:
    servers = Servers(strong=10_000, weak=0.001)
    found = await capacities(servers, 0, {}, Range(8, 100))
    assert found == {"strong": 100, "weak": 0}
    assert {sessions for _name, sessions in servers.calls} <= set(range(1, 101))


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({8: 1.0, 16: 0.8}, 8 * math.sqrt(2)),
        ({8: 0.9, 16: 0.5}, 8),
        ({8: 1.0, 16: 0.95, 32: 0.0}, 16 * 2 ** (0.05 / 0.95)),
        ({8: 1.0, 16: 1.0}, 16),
        ({1: 0.0}, 0),
        ({4: 0.5, 8: 1.0, 16: 0.8}, 8 * math.sqrt(2)),  # an unlucky small trial does not count
    ],
)
def test_the_capacity_is_interpolated_between_the_bounds(shares: dict[int, float], expected: float) -> None:
    assert crossing([trial(sessions, share) for sessions, share in shares.items()], PROMISE) == pytest.approx(expected)


def test_a_ratio_is_of_pairs_so_that_a_hard_trace_cancels() -> None:
    chance = random.Random(1)
    traces = [chance.uniform(0.5, 2.0) for _ in range(6)]
    ours, theirs = [40 * each for each in traces], [20 * each for each in traces]
    found = ratio(ours, theirs)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert editors(ours).low < 0.8 * editors(ours).value


def test_two_rounds_have_no_interval_and_decide_nothing() -> None:
    found = editors([10.0, 40.0])
    assert found.value == pytest.approx(20)
    assert math.isnan(found.low)
    assert not is_decided({"ours": [40.0, 41.0], "theirs": [10.0, 11.0]}, "ours")


def test_contestants_are_told_apart_when_no_ratio_can_be_one() -> None:
    ours = [40.0, 44.0, 38.0]
    assert is_decided({"ours": ours, "worse": [20.0, 21.0, 20.0], "better": [80.0, 90.0, 75.0]}, "ours")
    assert not is_decided({"ours": ours, "worse": [20.0, 21.0, 20.0], "alike": [41.0, 40.0, 39.0]}, "ours")


def test_a_server_that_serves_nobody_has_a_finite_ratio() -> None:
    assert ratio([10.0, 10.0, 10.0], [0.0, 0.0, 0.0]).value == pytest.approx(20)


@pytest.mark.parametrize(
    ("num_rounds", "has_decided", "elapsed_s", "is_due"),
    [(1, False, 5000, True), (2, True, 0, True), (3, True, 0, False), (3, False, 700, True), (3, False, 750, False)],
)
def test_rounds_go_on_for_intervals_and_then_within_the_time(
    num_rounds: int, has_decided: bool, elapsed_s: float, is_due: bool
) -> None:
    due = is_another_round_due(num_rounds, has_decided=has_decided, elapsed_s=elapsed_s, round_s=200, limit_s=900)
    assert due == is_due
