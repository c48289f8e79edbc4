"""Replicas that share limits, in virtual time: real limits, real messages, a double of Redis without I/O.

tests/fault/test_limit_scripts.py proves that the scripts here and in Redis do the same.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from completion_server.limits.shared import Limiter, SessionLimiter, SharedLimits
from completion_server.state.limit_reports import MEET, SHARE, LimitReports
from completion_server.state.store import Arg, StoreUnavailableError
from loadtest.simulation.virtual_time import LoopClock, VirtualTimeLoop

TIMEOUT_S = 0.1
STEP_S = 0.02


def _show(*numbers: float) -> bytes:
    return " ".join(f"{number:.17g}" for number in numbers).encode()


class LimitScripts:
    """The scripts of shared limits in Python. `now` is Redis's time."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.debts: dict[str, tuple[float, float]] = {}
        """When each key's debt was charged, and the debt."""
        self.shares: dict[str, dict[str, tuple[float, float, float, float]]] = {}
        """Time, demand, share and open sessions of each replica, by key."""
        self.heartbeats: dict[str, tuple[float, str]] = {}
        self.num_commands = 0

    def run(self, *command: Arg) -> Any:
        """Run a command and return its reply."""
        self.num_commands += 1
        _eval, script, _num_keys, key, me, *arguments = command
        if script == MEET:
            return self._meet(str(me), str(arguments[0]), float(arguments[1]))
        assert script == SHARE
        return self._share(str(key), str(me), *map(float, arguments))

    def _share(
        self, key: str, me: str, kept_s: float, rate: float, burst: float, max_debt: float, taken: float,
        num_open: float, demand: float, floor: float,
    ) -> list[bytes]:  # fmt: skip
        shares = self.shares.setdefault(key, {})
        for name, each in list(shares.items()):
            if abs(self.now - each[0]) >= kept_s:
                del shares[name]
        at, debt = self.debts.get(key, (self.now, 0.0))
        debt -= max(0.0, self.now - at) * rate * (1 - sum(each[2] for each in shares.values())) - taken
        self.debts[key] = self.now, min(max_debt, max(0.0, debt))
        others = [each for name, each in shares.items() if name != me]
        part = 0.0
        if demand:
            wanted = demand + sum(each[1] for each in others)
            part = min(demand / wanted, max(floor, 1 - sum(each[2] for each in others)))
            shares[me] = self.now, demand, part, num_open
        else:
            shares.pop(me, None)
        return [_show(part), _show(burst - self.debts[key][1] - num_open - sum(each[3] for each in others))]

    def _meet(self, me: str, process: str, known_s: float) -> list[list[bytes]]:
        found = [
            [name.encode(), process.encode(), _show(max(0.0, self.now - at))]
            for name, (at, process) in self.heartbeats.items()
            if abs(self.now - at) <= known_s
        ]
        self.heartbeats[me] = self.now, process
        if not process:
            del self.heartbeats[me]
        return found


class FakeStore:
    """A replica's way to the scripts. Faults can be set at any time."""

    def __init__(self, scripts: LimitScripts) -> None:
        self._scripts = scripts
        self.request_delay_s = self.reply_delay_s = 0.001
        self.is_cut = False
        self.loses_replies = False
        self.is_available = True

    def call_nowait(self, *command: Arg, patience_s: float = 0.0) -> "asyncio.Future[Any]":
        """Send a command, see `Store`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def end(reply: Any = None) -> None:
            if not future.done() and reply is not None:
                future.set_result(reply)
            elif not future.done():
                future.set_exception(StoreUnavailableError("too late"))

        def arrive() -> None:
            self._scripts.now = 1_700_000_000.0 + loop.time()
            reply = self._scripts.run(*command)
            if not self.loses_replies:
                loop.call_later(self.reply_delay_s, end, reply)

        loop.call_later(TIMEOUT_S, end)
        if not self.is_cut:
            loop.call_later(self.request_delay_s, arrive)
        return future


@dataclass
class Limits:
    """The limits under test."""

    units_per_s: float = 20.0
    burst: float = 40.0
    max_sessions: int = 12


class FakeReplica:
    """One replica's limits, and its connection to Redis."""

    def __init__(self, name: str, scripts: LimitScripts, limits: Limits, num_replicas: int) -> None:
        self.clock = LoopClock()
        self.store = FakeStore(scripts)
        self.shared = SharedLimits(
            LimitReports(self.store, lambda kind, key: f"{kind}:{key}"), self.clock, name, num_replicas
        )
        self.limiter: Limiter = self.shared.rate("requests", limits.units_per_s, limits.burst)
        self.sessions: SessionLimiter = self.shared.sessions("sessions", limits.max_sessions)
        self.task = asyncio.get_running_loop().create_task(self.shared.run())

    def take(self, key: str, num: int = 1) -> int:
        """Try to take units one by one, and return how many there were."""
        taken = 0
        while taken < num and not self.limiter.delay_s(key, self.clock.now()):
            self.limiter.charge(key, self.clock.now())
            taken += 1
        return taken

    def open_sessions(self, key: str, num: int = 1) -> int:
        """Try to open sessions, and return how many were opened."""
        opened = 0
        while opened < num and not self.sessions.is_full(key):
            self.sessions.enter(key)
            opened += 1
        return opened


@dataclass
class FakeReplicas:
    """Replicas with one Redis, in virtual time."""

    num: int = 3
    limits: Limits = field(default_factory=Limits)
    scripts: LimitScripts = field(default_factory=LimitScripts)

    async def start(self) -> "FakeReplicas":
        """Start the replicas, and wait until each one knows the others."""
        self.replicas = [self.make(f"replica-{number}") for number in range(self.num)]
        await asyncio.sleep(1.1)
        return self

    def __getitem__(self, number: int) -> FakeReplica:
        return self.replicas[number]

    def make(self, name: str) -> FakeReplica:
        """Return a new replica, which runs."""
        return FakeReplica(name, self.scripts, self.limits, self.num)

    async def offer(self, seconds: float, rate: float, to: Sequence[int], key: str = "u") -> list[int]:
        """Let requests arrive at some replicas at a steady rate each, and return how many each one took."""
        taken, due = [0] * len(to), 0.0
        for _ in range(round(seconds / STEP_S)):
            await asyncio.sleep(STEP_S)
            due += rate * STEP_S
            for place, number in enumerate(to):
                taken[place] += self[number].take(key, int(due))
            due -= int(due)
        return taken


def new_loop() -> VirtualTimeLoop:
    """Return an event loop for a test that is no coroutine."""
    return VirtualTimeLoop()


@dataclass
class Excess:
    """By how much units were taken faster than a rate, in the worst window."""

    units_per_s: float
    at: float = 0.0
    now: float = 0.0
    worst: float = 0.0

    def add(self, units: float, at: float) -> None:
        """Count units that were taken at a time."""
        self.now = max(0.0, self.now - (at - self.at) * self.units_per_s) + units
        self.at, self.worst = at, max(self.worst, self.now)
