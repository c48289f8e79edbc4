"""Keeps shared limits in step with Redis: sends heartbeats and the messages of the ledger.

No request waits for anything here. The ledger decides what to ask for (admission/ledger.py); this module knows how to
ask Redis.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from completion_server.core.clock import Clock
from completion_server.state.lease_scripts import HEARTBEAT, LEASE_RATE, LEASE_SESSIONS
from completion_server.state.store import Store

logger = logging.getLogger(__name__)

TICK_S = 0.02
HEARTBEAT_S = 0.5
LIFE_S = 2.0
"""A replica counts as alive for this time after it received an answer to a heartbeat."""
FRESH_S = 1.0
"""The figures of a heartbeat are used for this time after it was sent. So all replicas know after LIFE_S + FRESH_S that
one is cut off.
"""
KNOWN_S = 600.0
"""A silent replica keeps its part of the limits for this time, so that the sum holds while it is cut off. One that
crashes comes again under its own name (`redis.replica_id`), and takes its own part.
"""
_SETTLED_S = 5.0
"""After an outage all replicas have sent heartbeats again within this time."""
_NUM_REPLIED = {"rate": 3, "sessions": 2}
_LEAVE_S = 0.5
_PATIENCE_S = 0.02
"""How long a message may wait to be sent together with others."""
_MEMBERS = "replicas"


class LeaseRequest(Protocol):
    """A message to the budget of one key."""

    @property
    def budget(self) -> str:
        """Which script takes it: "rate" or "sessions"."""
        ...

    @property
    def kind(self) -> str:
        """The kind of the key."""
        ...

    @property
    def key(self) -> str:
        """The key: a user or a tenant."""
        ...

    @property
    def arguments(self) -> tuple[float, ...]:
        """The script's arguments."""
        ...

    @property
    def settle(self) -> Callable[[Sequence[float] | None, float], None]:
        """Takes the reply and the time; None if Redis did not answer."""
        ...


class Ledger(Protocol):
    """The part of the ledger that talks to Redis."""

    def confirm(
        self, *, received_at: float, fresh_until: float, alone_from: float, budget_s: float, num_replicas: int,
        num_alive: int,
    ) -> None:  # fmt: skip
        """Take notice of a heartbeat that Redis answered."""
        ...

    def requests(self, now: float) -> Sequence[LeaseRequest]:
        """Return the messages to send."""
        ...

    def give_back(self, now: float) -> Sequence[LeaseRequest]:
        """Return the messages that give back all units."""
        ...


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as the last heartbeat found it."""

    id: str
    age_s: float
    """Seconds since its last heartbeat, on Redis's clock."""
    is_alive: bool


class LeaseSync:
    """Sends heartbeats and the messages of a ledger."""

    def __init__(
        self, store: Store, ledger: Ledger, clock: Clock, name: Callable[[str, str], str], replica_id: str
    ) -> None:
        """Prepare. `name` makes the name of a Redis key from a kind, such as "user_tokens", and a user or tenant."""
        self._store = store
        self._ledger = ledger
        self._clock = clock
        self._name = name
        self._replica_id = replica_id
        self._anchor = "0"
        """Redis's time in the last reply."""
        self._next_beat_at = 0.0
        self._is_beating = False
        self._has_left = False
        self._process = secrets.token_hex(8)
        self._found: tuple[Replica, ...] = ()
        self._found_at = 0.0
        self._members = _MembershipLog(replica_id)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """All replicas, also this one, as the last heartbeat found them and older by the time since then."""
        elapsed_s = self._clock.now() - self._found_at
        return tuple(
            Replica(each.id, each.age_s + elapsed_s, each.is_alive and each.age_s + elapsed_s < LIFE_S)
            for each in self._found
        )

    @property
    def num_alive(self) -> int:
        """Replicas that are known to be alive; none while Redis does not answer."""
        return sum(replica.is_alive for replica in self.replicas)

    @property
    def has_duplicate_id(self) -> bool:
        """Whether another living process had this replica's id at the last heartbeat."""
        return self._members.has_duplicate_id

    async def run(self) -> None:
        """Keep in step until cancelled. Begins at once, also if Redis can't be reached."""
        self._next_beat_at = self._clock.now()
        while True:
            self.tick()
            await asyncio.sleep(TICK_S)

    def tick(self) -> None:
        """Send what is due."""
        if self._has_left:
            return
        now = self._clock.now()
        if now >= self._next_beat_at and not self._is_beating:
            self._beat(now)
        for request in self._ledger.requests(now):
            self._send(request)

    async def leave(self) -> None:
        """Say goodbye and give everything back, while the store still runs. Nothing is sent afterwards.

        The goodbye comes first: if the store can't take all messages, Redis forgets the holdings by itself.
        """
        self._has_left = True
        sent = [self._heartbeat("-1"), *map(self._send, self._ledger.give_back(self._clock.now()))]
        await asyncio.wait(sent, timeout=_LEAVE_S)
        for future in sent:
            _has_failed(future)  # what fails now is of no interest any more, also to the event loop

    def _send(self, request: LeaseRequest) -> "asyncio.Future[Any]":
        script = LEASE_SESSIONS if request.budget == "sessions" else LEASE_RATE
        name = self._name(request.kind, request.key)
        future = self._store.call_nowait(
            "EVAL", script, 1, name, self._replica_id, *request.arguments, patience_s=_PATIENCE_S
        )
        future.add_done_callback(partial(self._settle, request))
        return future

    def _settle(self, request: LeaseRequest, future: "asyncio.Future[Any]") -> None:
        reply = None if _has_failed(future) else _numbers(future.result(), _NUM_REPLIED[request.budget])
        request.settle(reply, self._clock.now())

    def _heartbeat(self, anchor: str) -> "asyncio.Future[Any]":
        key = self._name(_MEMBERS, "")
        return self._store.call_nowait(
            "EVAL", HEARTBEAT, 1, key, self._replica_id, anchor, LIFE_S, KNOWN_S, self._process
        )

    def _beat(self, now: float) -> None:
        self._is_beating = True
        self._next_beat_at = now + HEARTBEAT_S
        self._heartbeat(self._anchor).add_done_callback(partial(self._beaten, now))

    def _beaten(self, sent_at: float, future: "asyncio.Future[Any]") -> None:
        self._is_beating = False
        if _has_failed(future):
            return
        try:
            beat = _Reply.of(future.result())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            logger.exception("unexpected reply of Redis to a heartbeat")
            return
        now, self._anchor = self._clock.now(), beat.redis_s
        self._found, self._found_at = beat.replicas, now
        if not any(replica.id == self._replica_id and replica.is_alive for replica in beat.replicas):
            self._next_beat_at = now  # now it has the time that makes it alive
        self._members.note(now, beat)
        self._ledger.confirm(
            received_at=now, fresh_until=sent_at + FRESH_S, alone_from=now + LIFE_S + FRESH_S,
            budget_s=beat.budget_s, num_replicas=beat.num_known, num_alive=beat.num_alive,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Reply:
    """The reply to a heartbeat, see `HEARTBEAT`."""

    redis_s: str
    budget_s: float
    num_alive: int
    num_known: int
    is_duplicate: bool
    replicas: tuple[Replica, ...]

    @classmethod
    def of(cls, reply: "list[Any]") -> "_Reply":
        """Read a reply. Raises several errors if it is not one."""
        redis_s, budget_s, num_alive, num_known, is_duplicate, *members = reply
        replicas = tuple(
            Replica(members[i].decode(), float(members[i + 1]), bool(members[i + 2])) for i in range(0, len(members), 3)
        )
        numbers = _numbers((redis_s, budget_s), 2)
        if numbers is None or not 0 <= int(num_alive) <= int(num_known) or not int(num_known):
            raise ValueError(reply)
        return cls(redis_s.decode(), numbers[1], int(num_alive), int(num_known), bool(is_duplicate), replicas)


class _MembershipLog:
    """Logs what is wrong with the replicas, once each time that it begins."""

    def __init__(self, replica_id: str) -> None:
        """Begin without an answer."""
        self._replica_id = replica_id
        self._is_known = False
        self._few_since: float | None = None
        self._was_warned = False
        self.has_duplicate_id = False

    def note(self, now: float, beat: _Reply) -> None:
        """Take notice of an answered heartbeat."""
        # The first heartbeat after a restart finds that of the process before.
        is_duplicate = beat.is_duplicate and self._is_known
        self._is_known = True
        if is_duplicate and not self.has_duplicate_id:
            logger.error(
                "another process has the replica id %r, too: shared limits and newest-wins do not hold for it; "
                "set another redis.replica_id",
                self._replica_id,
            )
        self.has_duplicate_id = is_duplicate
        self._note_silent(now, beat)

    def _note_silent(self, now: float, beat: _Reply) -> None:
        if beat.num_known <= 2 * beat.num_alive:
            self._few_since, self._was_warned = None, False
            return
        self._few_since = now if self._few_since is None else self._few_since
        if now - self._few_since >= _SETTLED_S and not self._was_warned:
            self._was_warned = True
            logger.warning(
                "only %d of %d known replicas are alive, so shared limits are that part of the whole; a silent replica "
                "is forgotten after %.0f s",
                beat.num_alive,
                beat.num_known,
                KNOWN_S,
            )


def _numbers(reply: "Sequence[Any] | None", num: int) -> list[float] | None:
    """Return a reply of `num` numbers, None if it is none."""
    try:
        numbers = [float(each) for each in reply or ()]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) == num and all(map(math.isfinite, numbers)):
        return numbers
    logger.error("unexpected reply of Redis to a lease: %.200r", reply)
    return None


def _has_failed(future: "asyncio.Future[Any]") -> bool:
    return future.cancelled() or future.exception() is not None
