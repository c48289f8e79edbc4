"""The book of live requests: a pure state machine. Every call says what must now be done and does none of it.

A request is in one of three states, and leaves the book from any of them:

    state     event       becomes    actions
    -         submit      QUEUED     -
    -         submit      RUNNING    TakeOver: work that runs serves this request as well as the one it was started for
    -         submit      (gone)     End: superseded (an older sequence than the lane's) or shed
    QUEUED    slot free   RUNNING    Start
    QUEUED    end         (gone)     End
    RUNNING   taken over  (gone)     End: superseded; its work and its slot are another's now
    RUNNING   parted      QUEUED     its slot is free; work that it had taken over turned out to be of no use
    RUNNING   end         ABORTING   End, Abort
    RUNNING   work done   (gone)     End; its slot is free
    ABORTING  work done   (gone)     its slot is free

"end" is a supersede, a cancel, a deadline or being shed. A request gets its End exactly once, on the way from QUEUED or
RUNNING to wherever it goes; a slot is taken at Start and free only when the work is done, because an engine that was
told to stop has not stopped yet.

A lane holds at most one live (QUEUED or RUNNING) request: a newer one takes its place. Prefetches have a lane of their
own beside it, so they never unseat what was typed. Slots are given by trigger, EXPLICIT before AUTOMATIC before
PREFETCH, and within a trigger by the `order`.

Shed is, where that is on: who can't have a first token in time any more; who by prediction won't; who has a slot but
no token when the time is up, while another waits for one; and when the queue is full, the last of the least class, by
the order. An engine with a free slot refuses nobody: what it does next is how it learns its own pace.
"""

import heapq
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Trigger
from completion_server.scheduling.claim import Claim
from completion_server.scheduling.order import Order, earliest_deadline
from completion_server.scheduling.pace import Pace
from completion_server.scheduling.queue import Queue
from completion_server.scheduling.sequences import Sequences


class Shedding(Enum):
    """When a request is given up for lack of time."""

    NEVER = "never"
    """It waits until its deadline."""
    LATE = "late"
    """As soon as even a slot at once would give it no token in time."""
    PREDICTED = "predicted"
    """Also when it arrives, if by prediction that is what would become of it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the work: it holds a slot from now on."""

    id: str


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Give the work of another request to this one. The other's End follows."""

    id: str
    from_id: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the work; say `work_done` when it has stopped."""

    id: str


@dataclass(frozen=True, slots=True)
class End:
    """Tell the caller. The request's only one."""

    id: str
    outcome: Outcome


Action = Start | TakeOver | Abort | End


class State(Enum):
    """Where a request is."""

    QUEUED = "queued"
    RUNNING = "running"
    ABORTING = "aborting"


class IllegalTransitionError(Exception):
    """An event came for a request that can't have it: a bug in the caller."""


@dataclass(slots=True)
class _Entry:
    claim: Claim
    queued_at: float
    state: State = State.QUEUED
    slot_since: float = 0.0
    has_token: bool = False
    is_heir: bool = False
    """Whether its work was begun for another request."""
    num_new_tokens: int = field(init=False)
    """Prompt tokens to compute, by the best estimate so far."""

    def __post_init__(self) -> None:
        self.num_new_tokens = self.claim.num_new_tokens

    @property
    def lane(self) -> Hashable:
        return self.claim.lane, self.claim.trigger is Trigger.PREFETCH


SUPERSEDED = Outcome(FinishReason.SUPERSEDED)
CANCELLED = Outcome(FinishReason.CANCELLED)
DEADLINE = Outcome(FinishReason.DEADLINE)

_MIN_RETRY_AFTER_MS = 50
_MAX_STALE_TICKS = 64
_UNWANTED = (FinishReason.SUPERSEDED, FinishReason.CANCELLED)


@dataclass(slots=True)
class Book:
    """The live requests, their lanes, the queue and the slots. All times are clock seconds."""

    num_slots: int
    max_queued: int
    order: Order = earliest_deadline
    shedding: Shedding = Shedding.LATE
    max_retry_after_ms: int = 1000
    """The most that a shed caller is told to wait."""
    pace: Pace = field(default_factory=Pace)
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _lanes: dict[Hashable, str] = field(default_factory=dict)
    _queues: tuple[Queue, ...] = field(default_factory=lambda: tuple(Queue() for _ in Trigger))
    _sequences: Sequences = field(default_factory=Sequences)
    _overdue: dict[str, None] = field(default_factory=dict)
    """Who kept a slot beyond its time, without a token, because nobody waited for it. In that order."""
    _ticks: list[tuple[float, int, str]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _num_occupied: int = 0

    @property
    def num_queued(self) -> int:
        """Requests that wait for a slot."""
        return sum(map(len, self._queues))

    @property
    def num_occupied(self) -> int:
        """Slots taken, by requests that run and by work that is being stopped."""
        return self._num_occupied

    @property
    def num_live(self) -> int:
        """Requests whose End is still to come."""
        return len(self._lanes)

    @property
    def next_tick(self) -> float | None:
        """When `tick` must be called at the latest."""
        while self._ticks and not self._is_live(self._ticks[0][2]):
            heapq.heappop(self._ticks)
        return self._ticks[0][0] if self._ticks else None

    def rivals(self, claim: Claim) -> list[str]:
        """Return the live requests whose work a newcomer may take over: its lane's, and the prefetch beside it.

        Those that run come first: of one that waits there is nothing to take over.
        """
        lanes = [(claim.lane, is_prefetch) for is_prefetch in (False, True)]
        found = [self._lanes[lane] for lane in lanes if lane in self._lanes]
        if claim.trigger is Trigger.PREFETCH:
            found = [rival for rival in found if self._is_prefetch(rival)]
        return sorted(found, key=lambda rival: self._entries[rival].state is not State.RUNNING)

    def submit(self, claim: Claim, now: float, *, heir_of: str | None = None) -> list[Action]:
        """Take a new request in, or end it at once.

        `heir_of` is one of its `rivals` whose work would serve it.
        """
        if claim.id in self._entries:
            msg = f"request {claim.id} is in the book already"
            raise IllegalTransitionError(msg)
        entry = _Entry(claim, queued_at=now)
        holder = self._entries.get(self._lanes.get(entry.lane, ""))
        if holder is not None and self._is_stale(entry, holder, now):
            return [End(claim.id, SUPERSEDED)]
        self._sequences.note((entry.lane, claim.session), claim.sequence, now)
        actions: list[Action] = []
        for rival in {each.claim.id: each for each in (self._entries.get(heir_of or ""), holder) if each}.values():
            if rival.claim.id == heir_of and rival.state is State.RUNNING:
                actions += self._take_over(entry, rival)
            else:
                actions += self._end(rival, SUPERSEDED, now)
        if entry.state is State.QUEUED and holder is None:
            refused = self._make_room(claim, now)
            actions += refused
            if any(isinstance(action, End) and action.id == claim.id for action in refused):
                return actions
        self._entries[claim.id] = entry
        self._lanes[entry.lane] = claim.id
        if entry.state is State.QUEUED:
            return actions + self._enqueue(entry, now)
        self._watch(entry)
        return actions + self._fill(now)

    def refuse(self, claim: Claim, outcome: Outcome, now: float) -> list[Action]:
        """End a new request at once, and the lane's older one with it: its user has typed on."""
        entry = _Entry(claim, queued_at=now)
        holder = self._entries.get(self._lanes.get(entry.lane, ""))
        if holder is not None and self._is_stale(entry, holder, now):
            return [End(claim.id, SUPERSEDED)]
        self._sequences.note((entry.lane, claim.session), claim.sequence, now)
        if holder is None:
            return [End(claim.id, outcome)]
        return [*self._end(holder, SUPERSEDED, now), End(claim.id, outcome)]

    def end(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        """End a live request from outside. One that is not live any more has had its End: nothing to do."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is State.ABORTING:
            return []
        return self._end(entry, outcome, now)

    def prompt_ready(self, request_id: str, num_new_tokens: int) -> None:
        """Note that the prompt of a request is built, and how many of its tokens the engine will have to compute."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry.num_new_tokens = num_new_tokens

    def first_token(self, request_id: str, now: float, num_new_tokens: int | None = None) -> None:
        """Note that a request has its first token, for which `num_new_tokens` tokens of its prompt were computed."""
        entry = self._entries.get(request_id)
        if entry is None or entry.has_token:
            return
        entry.has_token = True
        self._overdue.pop(request_id, None)
        if not entry.is_heir:
            size = entry.num_new_tokens if num_new_tokens is None else num_new_tokens
            self.pace.first_token.add(now - entry.slot_since, size)

    def parted(self, request_id: str, now: float) -> list[Action]:
        """Work that a request had taken over has stopped, being of no use to it: it waits for a slot of its own."""
        entry = self._working(request_id)
        if entry.state is not State.RUNNING:
            msg = f"request {request_id} has ended; its work can't be of use to it or not"
            raise IllegalTransitionError(msg)
        self._free_slot(entry, now)
        entry.state, entry.is_heir, entry.has_token, entry.queued_at = State.QUEUED, False, False, now
        return self._enqueue(entry, now)

    def work_done(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        """The work of a started request has stopped, by itself (`outcome` says how) or because it was told to."""
        entry = self._working(request_id)
        actions: list[Action] = []
        if entry.state is State.RUNNING:
            self._leave_lane(entry)
            actions.append(End(request_id, outcome))
        del self._entries[request_id]
        self._free_slot(entry, now)
        return actions + self._fill(now)

    def tick(self, now: float) -> list[Action]:
        """End what is past its deadline, and what has no time left."""
        actions: list[Action] = []
        while self._ticks and self._ticks[0][0] <= now:
            entry = self._entries.get(heapq.heappop(self._ticks)[2])
            if entry is None or entry.state is State.ABORTING:
                continue
            if entry.claim.deadline.is_past(now):
                actions += self._end(entry, DEADLINE, now)
            elif self._is_hopeless(entry, now):
                actions += self._end(entry, self._shed(entry.claim, ShedReason.DEADLINE_UNREACHABLE), now)
            else:
                if entry.state is State.RUNNING and not entry.has_token and now >= entry.claim.answer_by:
                    self._overdue[entry.claim.id] = None
                self._watch(entry, now)
        return actions

    def resize(self, num_slots: int, now: float) -> list[Action]:
        """Change the number of slots. Who holds one too many keeps it."""
        self.num_slots = num_slots
        return self._fill(now)

    def _is_stale(self, entry: _Entry, holder: _Entry, now: float) -> bool:
        """Tell whether a request came too late to unseat the lane's holder: its own session has asked anew since."""
        claim = entry.claim
        if holder.claim.session == claim.session:
            return holder.claim.sequence >= claim.sequence
        return self._sequences.is_overtaken((entry.lane, claim.session), claim.sequence, now)

    def _take_over(self, entry: _Entry, other: _Entry) -> list[Action]:
        self._overdue.pop(other.claim.id, None)
        entry.state, entry.is_heir, entry.slot_since = State.RUNNING, True, other.slot_since
        self._leave_lane(other)
        del self._entries[other.claim.id]
        return [TakeOver(entry.claim.id, other.claim.id), End(other.claim.id, SUPERSEDED)]

    def _make_room(self, claim: Claim, now: float) -> list[Action]:
        """Decide whether a newcomer that takes nobody's place may wait, and who gives way to it."""
        if self._num_occupied < self.num_slots:
            return []
        if self.shedding is Shedding.PREDICTED:
            first_token_at = now + self._wait_s(claim) + self.pace.first_token_after(claim.num_new_tokens)
            if first_token_at > claim.answer_by:
                return [End(claim.id, self._shed(claim, ShedReason.DEADLINE_UNREACHABLE))]
        if self.num_queued < self.max_queued:
            return []
        for queue in self._queues[: claim.trigger - 1 if claim.trigger else None : -1]:
            if (last := queue.last()) is not None and self._goes_before(claim, self._entries[last].claim):
                entry = self._entries[last]
                return self._end(entry, self._shed(entry.claim, ShedReason.OVERLOAD), now)
        return [End(claim.id, self._shed(claim, ShedReason.OVERLOAD))]

    def _goes_before(self, claim: Claim, other: Claim) -> bool:
        return (claim.trigger, self.order(claim)) < (other.trigger, self.order(other))

    def _wait_s(self, claim: Claim) -> float:
        """Predict how long a newcomer would wait: behind better classes, and all of its own unless newest go first."""
        num_ahead = sum(len(queue) for queue in self._queues[: claim.trigger])
        own = self._queues[claim.trigger]
        head = own.first()
        if head is not None and self.order(self._entries[head].claim) <= self.order(claim):
            num_ahead += len(own)
        return self.pace.wait_s(num_ahead, self.num_slots)

    def _shed(self, claim: Claim, reason: ShedReason) -> Outcome:
        wait_ms = round(self._wait_s(claim) * 1000)
        return Outcome(FinishReason.SHED, reason, min(self.max_retry_after_ms, max(_MIN_RETRY_AFTER_MS, wait_ms)))

    def _is_hopeless(self, entry: _Entry, now: float) -> bool:
        """Tell whether a request can't have its first token in time; one that runs only loses its slot to another."""
        if self.shedding is Shedding.NEVER:
            return False
        if entry.state is State.QUEUED:
            return now >= self._latest_start(entry)
        return not entry.has_token and self.num_queued > 0 and now >= entry.claim.answer_by

    def _latest_start(self, entry: _Entry) -> float:
        return entry.claim.answer_by - self.pace.first_token_after(entry.num_new_tokens)

    def _watch(self, entry: _Entry, now: float | None = None) -> None:
        """Have `tick` look at a request when that may have to end: at its deadline, or before, when time runs out."""
        at = entry.claim.deadline.at
        if self.shedding is not Shedding.NEVER:
            if entry.state is State.QUEUED:
                at = min(at, self._latest_start(entry))
            elif not entry.has_token and (now is None or now < entry.claim.answer_by):
                at = min(at, entry.claim.answer_by)
        if at == float("inf"):
            return
        heapq.heappush(self._ticks, (at, next(self._numbers), entry.claim.id))
        if len(self._ticks) > 4 * len(self._entries) + _MAX_STALE_TICKS:
            self._ticks = [tick for tick in self._ticks if self._is_live(tick[2])]
            heapq.heapify(self._ticks)

    def _end(self, entry: _Entry, outcome: Outcome, now: float) -> list[Action]:
        self._leave_lane(entry)
        claim = entry.claim
        if entry.state is State.RUNNING:
            entry.state = State.ABORTING
            self._overdue.pop(claim.id, None)
            self._learn_from_abort(entry, now)
            return [End(claim.id, outcome), Abort(claim.id)]
        self._queues[claim.trigger].remove(claim.id)
        self.pace.left_queue(now - entry.queued_at, has_vanished=outcome.reason in _UNWANTED)
        del self._entries[claim.id]
        return [End(claim.id, outcome)]

    def _learn_from_abort(self, entry: _Entry, now: float) -> None:
        """Where a first token takes so long that nobody waits for it, what was waited is all that there is to learn."""
        waited_s, size = now - entry.slot_since, entry.num_new_tokens
        if not entry.has_token and not entry.is_heir and waited_s > self.pace.first_token.at(size):
            self.pace.first_token.add(waited_s, size)

    def _enqueue(self, entry: _Entry, now: float) -> list[Action]:
        """Let a request wait; watch it only after the slots were given out, which may teach how long things take."""
        claim = entry.claim
        self._queues[claim.trigger].add(claim.id, (self.order(claim), next(self._numbers)))
        actions = self._fill(now)
        if entry.state is State.QUEUED:
            self._watch(entry)
        return actions

    def _fill(self, now: float) -> list[Action]:
        """Give free slots to those who wait and still have the time."""
        actions: list[Action] = []
        for queue in self._queues:
            while self._num_occupied < self.num_slots and (request_id := queue.first()) is not None:
                entry = self._entries[request_id]
                if entry.queued_at < now and self._is_hopeless(entry, now):
                    actions += self._end(entry, self._shed(entry.claim, ShedReason.DEADLINE_UNREACHABLE), now)
                    continue
                queue.remove(request_id)
                self.pace.left_queue(now - entry.queued_at, has_vanished=False)
                entry.state, entry.slot_since = State.RUNNING, now
                self._num_occupied += 1
                self._watch(entry)
                actions.append(Start(request_id))
        return actions + self._reclaim(now)

    def _reclaim(self, now: float) -> list[Action]:
        """Take slots from those beyond their time for those who wait, less those that are coming free already."""
        actions: list[Action] = []
        if not self._overdue:
            return actions
        num_aborting = self._num_occupied - (self.num_live - self.num_queued)
        for request_id in list(self._overdue)[: max(0, self.num_queued - num_aborting)]:
            entry = self._entries[request_id]
            actions += self._end(entry, self._shed(entry.claim, ShedReason.DEADLINE_UNREACHABLE), now)
        return actions

    def _working(self, request_id: str) -> _Entry:
        entry = self._entries.get(request_id)
        if entry is None or entry.state is State.QUEUED:
            msg = f"work of request {request_id} ended, but none was started"
            raise IllegalTransitionError(msg)
        return entry

    def _free_slot(self, entry: _Entry, now: float) -> None:
        self._num_occupied -= 1
        self._overdue.pop(entry.claim.id, None)
        self.pace.held.add(now - entry.slot_since)

    def _leave_lane(self, entry: _Entry) -> None:
        del self._lanes[entry.lane]

    def _is_prefetch(self, request_id: str) -> bool:
        return self._entries[request_id].claim.trigger is Trigger.PREFETCH

    def _is_live(self, request_id: str) -> bool:
        entry = self._entries.get(request_id)
        return entry is not None and entry.state is not State.ABORTING
