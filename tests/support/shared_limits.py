"""Replicas that share limits, in virtual time: real ledgers, real messages, a double of Redis."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from completion_server.admission.ledger import Ledger
from completion_server.admission.limits import Limiter, SessionLimiter
from completion_server.state.leases import TICK_S, LeaseSync
from tests.support.lease_double import FakeStore, LeaseBudgets

STEP_S = 0.01


@dataclass
class SetClock:
    at: float = 100.0

    def now(self) -> float:
        return self.at


def name_of(kind: str, key: str) -> str:
    return f"test:{kind}:{key}"


@dataclass
class Limits:
    """The limits under test."""

    units_per_s: float = 20.0
    burst: float = 40.0
    max_sessions: int = 12

    def lease(self, num_replicas: int) -> float:
        """Return one lease: the most by which all replicas may exceed the budget."""
        return max(1.0, min(self.units_per_s, self.burst / 2), 2 * num_replicas)


class FakeReplica:
    """One replica's ledger, and its connection to Redis."""

    def __init__(self, name: str, budgets: LeaseBudgets, clock: SetClock, limits: Limits, num_replicas: int) -> None:
        self.clock = clock
        self.store = FakeStore(budgets)
        self.store.advance(clock.at)
        self.ledger = Ledger(clock, num_replicas, random.Random(name).random)
        self.limiter: Limiter = self.ledger.rate("requests", limits.units_per_s, limits.burst)
        self.sessions: SessionLimiter = self.ledger.sessions("sessions", limits.max_sessions)
        self.sync = LeaseSync(self.store, self.ledger, clock, name_of, name)
        self._next_tick_at = clock.at

    def step(self) -> None:
        """Do what is due."""
        self.store.advance(self.clock.at)
        if self.clock.at >= self._next_tick_at:
            self.sync.tick()
            self._next_tick_at = self.clock.at + TICK_S

    def take(self, key: str, num: int = 1) -> int:
        """Try to take units one by one, and return how many there were."""
        taken = 0
        while taken < num and not self.limiter.delay_s(key, self.clock.at):
            self.limiter.charge(key, self.clock.at)
            taken += 1
        return taken

    def num_open_of(self, key: str) -> int:
        """Return the number of a key's sessions here."""
        return self.sessions.num_open(key)

    def open_sessions(self, key: str, num: int = 1) -> int:
        """Try to open sessions, and return how many were opened."""
        opened = 0
        while opened < num and not self.sessions.is_full(key):
            self.sessions.enter(key)
            opened += 1
        return opened


@dataclass
class FakeReplicas:
    """Replicas with one Redis and one clock."""

    num: int = 3
    limits: Limits = field(default_factory=Limits)
    clock: SetClock = field(default_factory=SetClock)
    budgets: LeaseBudgets = field(default_factory=LeaseBudgets)

    def __post_init__(self) -> None:
        self.replicas = [self.start(f"replica-{number}") for number in range(self.num)]
        self.advance(1.0)

    def __getitem__(self, number: int) -> FakeReplica:
        return self.replicas[number]

    def start(self, name: str) -> FakeReplica:
        """Return a new replica."""
        return FakeReplica(name, self.budgets, self.clock, self.limits, self.num)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / STEP_S)):
            self.clock.at += STEP_S
            self.budgets.now += STEP_S
            for replica in self.replicas:
                replica.step()

    def offer(self, seconds: float, rate: float, to: Sequence[int], key: str = "u") -> list[int]:
        """Let requests arrive at some replicas at a steady rate each, and return how many each one took."""
        taken, due = [0] * len(to), 0.0
        for _ in range(round(seconds / STEP_S)):
            self.advance(STEP_S)
            due += rate * STEP_S
            for place, number in enumerate(to):
                taken[place] += self[number].take(key, int(due))
            due -= int(due)
        return taken
