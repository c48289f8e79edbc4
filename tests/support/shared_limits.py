"""Replicas that share limits, in virtual time: real limits, real messages, a double of Redis without I/O.

The double keeps the board by the ledger of front ends; tests/fault/test_limit_scripts.py proves that the scripts in
Redis do the same.
"""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from completion_server.limits.ledger import Ledger, Part, Terms
from completion_server.limits.replicas import Replica as Seen
from completion_server.limits.shared import Board, Limiter, SessionLimiter, SharedLimits
from completion_server.state.limit_reports import MEET, SHARE, LimitReports
from completion_server.state.local.board import BoardKeeper, LocalBoard
from completion_server.state.local.bus import Handler, Kind
from completion_server.state.store import Arg, StoreUnavailableError
from loadtest.simulation.virtual_time import LoopClock, VirtualTimeLoop

TIMEOUT_S = 0.1
STEP_S = 0.02


def _show(*numbers: float) -> bytes:
    return " ".join(f"{number:.17g}" for number in numbers).encode()


class LimitScripts(Ledger):
    """The scripts of shared limits in Python, and what a parent answers its front ends. `now` is Redis's time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000.0
        self.num_commands = 0

    @property
    def debts(self) -> dict[str, float]:
        """The debt of each key."""
        return {str(key): account.debt for key, account in self.accounts.items()}

    @property
    def shares(self) -> dict[str, dict[str, Part]]:
        """What each replica has of each key."""
        return {str(key): account.parts for key, account in self.accounts.items()}

    def meet(self, me: str, process: str, known_s: float, now: float) -> list[Seen]:
        """Count a command."""
        self.num_commands += 1
        return super().meet(me, process, known_s, now)

    def share(self, key: Hashable, me: str, terms: Terms, now: float) -> tuple[float, float]:
        """Count a command."""
        self.num_commands += 1
        return super().share(key, me, terms, now)

    def run(self, *command: Arg) -> Any:
        """Run a command of Redis and return its reply."""
        _eval, script, _num_keys, key, me, *arguments = command
        if script == MEET:
            found = self.meet(str(me), str(arguments[0]), float(arguments[1]), self.now)
            return [[each.id.encode(), each.process.encode(), _show(each.age_s)] for each in found]
        assert script == SHARE
        return [_show(each) for each in self.share(str(key), str(me), Terms(*map(float, arguments)), self.now)]


@dataclass
class Link:
    """A replica's way to the board. Faults can be set at any time."""

    request_delay_s: float = 0.001
    reply_delay_s: float = 0.001
    is_cut: bool = False
    loses_replies: bool = False


class FakeStore:
    """A replica's connection to Redis."""

    def __init__(self, scripts: LimitScripts, link: Link) -> None:
        self._scripts = scripts
        self._link = link
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
            if not self._link.loses_replies:
                loop.call_later(self._link.reply_delay_s, end, reply)

        loop.call_later(TIMEOUT_S, end)
        if not self._link.is_cut:
            loop.call_later(self._link.request_delay_s, arrive)
        return future


class FakeBus:
    """A front end's way to its parent."""

    place = 0

    def __init__(self, link: Link) -> None:
        self._link = link
        self._handlers: dict[Kind, Handler] = {}
        self.parent = ParentBus(self)

    def on(self, kind: Kind, handler: Handler) -> None:
        """See `Bus`."""
        self._handlers[kind] = handler

    def send(self, _place: int, kind: Kind, payload: bytes = b"") -> bool:
        """Send to the parent, see `Bus`."""
        if not self._link.is_cut:
            asyncio.get_running_loop().call_later(self._link.request_delay_s, self.parent.receive, kind, payload)
        return True

    def receive(self, kind: Kind, payload: bytes) -> None:
        """Take a message of the parent."""
        if not self._link.loses_replies:
            asyncio.get_running_loop().call_later(self._link.reply_delay_s, self._handlers[kind], 1, payload)


class ParentBus:
    """A parent's way to one front end."""

    place = 1

    def __init__(self, front_end: FakeBus) -> None:
        self._front_end = front_end
        self._handlers: dict[Kind, Handler] = {}

    def on(self, kind: Kind, handler: Handler) -> None:
        """See `Bus`."""
        self._handlers[kind] = handler

    def send(self, _place: int, kind: Kind, payload: bytes = b"") -> bool:
        """Send to the front end, see `Bus`."""
        self._front_end.receive(kind, payload)
        return True

    def receive(self, kind: Kind, payload: bytes) -> None:
        """Take a message of the front end."""
        self._handlers[kind](0, payload)


def redis_board(scripts: LimitScripts, link: Link) -> Board:
    """Return the board that a replica finds in Redis."""
    return LimitReports(FakeStore(scripts, link), lambda kind, key: f"{kind}:{key}")


def local_board(scripts: LimitScripts, link: Link) -> Board:
    """Return the board that a front end finds in its parent."""
    bus = FakeBus(link)
    BoardKeeper(bus.parent, LoopClock(), scripts)
    return LocalBoard(bus, bus.parent.place)


BOARDS = {"redis": redis_board, "local": local_board}


@dataclass
class Limits:
    """The limits under test."""

    units_per_s: float = 20.0
    burst: float = 40.0
    max_sessions: int = 12


class FakeReplica:
    """One replica's limits, and its way to the board."""

    def __init__(self, name: str, scripts: LimitScripts, limits: Limits, num_replicas: int, board: str) -> None:
        self.clock = LoopClock()
        self.link = Link()
        self.shared = SharedLimits(BOARDS[board](scripts, self.link), self.clock, name, num_replicas)
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
    """Replicas with one Redis, or front ends with one parent, in virtual time."""

    board: ClassVar[str] = "redis"
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
        return FakeReplica(name, self.scripts, self.limits, self.num, self.board)

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
