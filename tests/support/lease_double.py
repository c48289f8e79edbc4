"""A double of Redis for shared limits, without I/O: the scripts in Python, and a store with delays and partitions.

tests/fault/test_lease_scripts.py proves that the scripts here and in Redis do the same.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from completion_server.state.lease_scripts import HEARTBEAT, LEASE_RATE, LEASE_SESSIONS
from completion_server.state.store import Arg, StoreUnavailableError

TIMEOUT_S = 0.1


def _show(number: float) -> bytes:
    return f"{number:.17g}".encode()


@dataclass
class _Members:
    budget: float
    last: float
    seen: dict[str, list[float]] = field(default_factory=dict)
    processes: dict[str, str] = field(default_factory=dict)
    """Alive until, and seen at, of each replica."""


@dataclass
class _Bucket:
    level: float
    at: float
    holders: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Units that each replica holds at most, budget time, and since when it has less than one (0: it has)."""


class LeaseBudgets:
    """The budgets of shared limits, as the scripts keep them. `now` is Redis's time."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self._members: dict[str, _Members] = {}
        self._buckets: dict[str, _Bucket] = {}
        self._sessions: dict[str, dict[str, tuple[int, float]]] = {}
        self.num_commands = 0

    def run(self, *command: Arg) -> Any:
        """Run a command and return its reply."""
        self.num_commands += 1
        _eval, script, _num_keys, key, *arguments = command
        scripts = {HEARTBEAT: self._heartbeat, LEASE_RATE: self._lease_rate, LEASE_SESSIONS: self._lease_sessions}
        return scripts[str(script)](str(key), *arguments)

    def level(self, key: str) -> float:
        """Return the level of a bucket."""
        return self._buckets[key].level

    def sessions(self, key: str) -> dict[str, int]:
        """Return the leased sessions of each replica."""
        return {name: count for name, (count, _ends) in self._sessions.get(key, {}).items()}

    def _heartbeat(self, key: str, me: Arg, anchor: Arg, life: Arg, known: Arg, process: Arg) -> list[Any]:
        life_s, known_s, anchor_s, now = float(life), float(known), float(anchor), self.now
        state = self._members.setdefault(key, _Members(now, now))
        for each in state.seen.values():
            each[1] = min(each[1], now)
        state.seen = {name: each for name, each in state.seen.items() if now - each[1] <= known_s}
        if state.seen:
            share = self._num_alive(state, life_s) / len(state.seen)
            state.budget += max(0.0, min(now - state.last, life_s)) * share
        state.last = now
        if anchor_s < 0:
            state.seen.pop(str(me), None)
            return []
        ends, _seen = state.seen.get(str(me), (0.0, 0.0))
        is_duplicate = now < ends <= now + life_s and state.processes.get(str(me)) != str(process)
        state.processes[str(me)] = str(process)
        state.seen[str(me)] = [anchor_s + life_s if anchor_s else 0.0, now]
        members = [
            part
            for name, (ends, seen) in state.seen.items()
            for part in (name.encode(), _show(now - seen), int(now < ends <= now + life_s))
        ]
        num_alive = self._num_alive(state, life_s)
        return [_show(now), _show(state.budget), num_alive, len(state.seen), int(is_duplicate), *members]

    def _num_alive(self, state: _Members, life_s: float) -> int:
        return sum(self.now < ends <= self.now + life_s for ends, _seen in state.seen.values())

    def _lease_rate(self, key: str, me: Arg, *arguments: Arg) -> list[Any]:
        budget, rate, burst, max_debt, charge, held, want, holder_ttl_s, _ttl_s = map(float, arguments)
        bucket = self._buckets.setdefault(key, _Bucket(burst, budget))
        bucket.holders = {
            name: each
            for name, each in bucket.holders.items()
            if name == str(me) or abs(budget - each[1]) < holder_ttl_s
        }
        others = [each for name, each in bucket.holders.items() if name != str(me)]
        mine, _reported_at, waiting_since = bucket.holders.get(str(me), (0.0, 0.0, 0.0))
        first_in_line = waiting_since or budget
        reserved = sum(0 < since < first_in_line and abs(budget - at) < 2 for _units, at, since in others)
        at = budget if bucket.at > budget + 10 else bucket.at
        capacity = burst - sum(each[0] for each in others)
        level = min(max(0.0, capacity - mine), bucket.level + max(0.0, budget - at) * rate)
        level = max(-max_debt, min(max(0.0, capacity - held), level - charge))
        free = level - reserved
        granted = max(0.0, min(want, free, max(free / (len(others) + 1), 1)))
        if held + granted < 1:
            granted = 0.0
        bucket.level, bucket.at = level - granted, max(at, budget)
        bucket.holders[str(me)] = held + granted, budget, 0.0 if held + granted >= 1 else first_in_line
        if held + granted + want <= 0:
            del bucket.holders[str(me)]
        return [_show(granted), _show(bucket.level), len(others) + 1]

    def _lease_sessions(self, key: str, me: Arg, num_open: Arg, want: Arg, limit: Arg, ttl_s: Arg) -> list[int]:
        leases = self._sessions.setdefault(key, {})
        for name, (_count, ends) in list(leases.items()):
            if name != me and not self.now < ends <= self.now + float(ttl_s):
                del leases[name]
        others = sum(count for name, (count, _ends) in leases.items() if name != me)
        granted = int(max(float(num_open), min(float(want), float(limit) - others)))
        leases[str(me)] = granted, self.now + float(ttl_s)
        if granted <= 0:
            del leases[str(me)]
        return [granted, others]


class Reply:
    """A future without an event loop: its callbacks are called at once."""

    def __init__(self) -> None:
        self._is_done = False
        self._value: Any = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Any], None]] = []

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return False

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Any:
        return self._value

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._is_done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def resolve(self, value: Any, error: Exception | None = None) -> None:
        if not self._is_done:
            self._is_done, self._value, self._error = True, value, error
            for callback in self._callbacks:
                callback(self)


@dataclass
class _Sent:
    command: tuple[Arg, ...]
    reply: Reply
    fails_at: float
    arrives_at: float
    value: Any = None
    answered_at: float | None = None


class FakeStore:
    """A replica's connection to the budgets, in virtual time: `advance` delivers what is due."""

    def __init__(self, budgets: LeaseBudgets) -> None:
        self._budgets = budgets
        self._now = 0.0
        self._sent: deque[_Sent] = deque()
        self.request_delay_s = 0.001
        self.reply_delay_s = 0.001
        self.is_cut = False
        """Whether commands are held back; they arrive when it ends, long after their senders gave up."""
        self.loses_replies = False
        self.is_available = True

    def call_nowait(self, *command: Arg, patience_s: float = 0.0) -> Any:
        reply = Reply()
        arrives_at = math.inf if self.is_cut else self._now + self.request_delay_s
        self._sent.append(_Sent(command, reply, self._now + TIMEOUT_S, arrives_at))
        return reply

    def heal(self) -> None:
        """End all faults. What was held back arrives now."""
        self.is_cut = self.loses_replies = False
        self.request_delay_s = self.reply_delay_s = 0.001
        for sent in self._sent:
            sent.arrives_at = min(sent.arrives_at, self._now)

    def advance(self, now: float) -> None:
        """Go on to a time: carry out commands, answer them, fail those that take too long."""
        self._now = now
        for sent in tuple(self._sent):
            if sent.answered_at is None and now >= sent.arrives_at:
                sent.value = self._budgets.run(*sent.command)
                sent.answered_at = math.inf if self.loses_replies else now + self.reply_delay_s
            if sent.answered_at is not None and now >= sent.answered_at:
                sent.reply.resolve(sent.value)
            elif now >= sent.fails_at:
                sent.reply.resolve(None, StoreUnavailableError("too late"))
            if sent.reply.done() and sent.answered_at is not None:
                self._sent.remove(sent)
