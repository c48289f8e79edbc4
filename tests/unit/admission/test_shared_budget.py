"""The most that greedy replicas take of a shared limit: the rate, the burst and one lease, in any window."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from completion_server.admission.leases import IDLE_S
from tests.support.shared_limits import FakeReplicas, Limits

ALL = (0, 1, 2)


@dataclass
class Greed:
    """Takes all that replicas give, and finds the worst excess over the rate in any window."""

    replicas: FakeReplicas
    level: float = 0.0
    worst: float = 0.0

    def take(self, numbers: Sequence[int], num: int = 1000) -> int:
        """Take what some replicas give now."""
        taken = sum(self.replicas[number].take("u", num) for number in numbers)
        self.level += taken
        self.worst = max(self.worst, self.level)
        return taken

    def last(self, seconds: float, numbers: Sequence[int] = ALL) -> int:
        """Take for a time."""
        taken = 0
        for _ in range(round(seconds / 0.02)):
            self.wait(0.02)
            taken += self.take(numbers)
        return taken

    def wait(self, seconds: float) -> None:
        self.replicas.advance(seconds)
        self.level = max(0.0, self.level - seconds * self.replicas.limits.units_per_s)

    def check(self, extra: float = 0.0) -> None:
        limits = self.replicas.limits
        allowed = limits.burst + limits.lease(3) + extra
        assert self.worst <= allowed + 1e-6, f"{self.worst} units above the rate, {allowed} allowed"


def test_a_replica_that_is_cut_off_again_and_again_gains_nothing() -> None:
    greed = Greed(FakeReplicas())
    for _ in range(12):
        greed.replicas[0].store.is_cut = True
        greed.last(5.0)
        greed.replicas[0].store.heal()
        greed.last(1.0)
    greed.check()


def test_replicas_that_begin_a_key_again_and_again_gain_nothing() -> None:
    greed = Greed(FakeReplicas())
    for _ in range(15):
        greed.take((1, 2))
        greed.last(IDLE_S + 1, [0])
    greed.check()


def test_holdings_leave_that_much_less_in_the_bucket() -> None:
    greed = Greed(FakeReplicas())
    for number in ALL:
        greed.take([number], 1)
        greed.wait(0.3)
    greed.wait(3.0)
    greed.last(1.0)
    greed.check(extra=-greed.replicas.limits.lease(3) / 2)


def test_a_refund_can_be_spent_once() -> None:
    greed = Greed(FakeReplicas())
    replica = greed.replicas[0]
    for _ in range(10):
        if greed.take([0], 1):
            replica.limiter.charge("u", greed.replicas.clock.at, 60.0)
            greed.wait(0.1)
            replica.limiter.charge("u", greed.replicas.clock.at, -60.0)
        greed.last(0.3)
    greed.check()


def test_debts_are_paid_by_all() -> None:
    greed = Greed(FakeReplicas())
    for _ in range(10):
        greed.replicas[0].limiter.charge("u", greed.replicas.clock.at, 30.0)
        greed.level += 30
        greed.last(1.5)
    greed.last(10.0)
    assert greed.level <= greed.replicas.limits.burst + greed.replicas.limits.lease(3)


def _events(replicas: FakeReplicas, draw: random.Random) -> list[Callable[[int], None]]:
    def cut(number: int) -> None:
        replicas[number].store.is_cut = True

    def lose(number: int) -> None:
        replicas[number].store.loses_replies = True

    def delay(number: int) -> None:
        replicas[number].store.request_delay_s = draw.choice([0.01, 0.05, 0.09, 0.2, 3.0])

    def heal(number: int) -> None:
        replicas[number].store.heal()

    return [cut, cut, lose, delay, heal, heal, heal]


@pytest.mark.parametrize("seed", range(12))
def test_greedy_replicas_stay_within_the_budget_under_random_faults(seed: int) -> None:
    draw = random.Random(seed)
    limits = Limits(*draw.choice([(20.0, 40), (2.0, 8), (100.0, 400), (0.5, 1), (20.0, 10)]))
    replicas = FakeReplicas(limits=limits)
    greed, events = Greed(replicas), _events(replicas, draw)
    for _ in range(40):
        draw.choice(events)(draw.choice(ALL))
        greed.last(draw.choice([0.1, 0.5, 2.0, 4.0, 6.0]), draw.choice([ALL, ALL, (0,), (1, 2), ()]))
    greed.check()
