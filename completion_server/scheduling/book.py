"""The book of live requests: a pure state machine. Every call says what must now be done and does none of it.

A request is in one of three states, and leaves the book from any of them:

    state     event       becomes    actions
    -         submit      QUEUED     -
    -         submit      (gone)     End: superseded (an older sequence than the lane's), shed (the queue is full)
    QUEUED    slot free   RUNNING    Start
    QUEUED    end         (gone)     End
    RUNNING   end         ABORTING   End, Abort
    RUNNING   work done   (gone)     End; its slot is free
    ABORTING  work done   (gone)     its slot is free

"end" is a supersede, a cancel or a deadline. A request gets its End exactly once, on the way from QUEUED or RUNNING to
wherever it goes; a slot is taken at Start and free only when the work is done, because an engine that was told to
stop has not stopped yet.

A lane holds at most one live (QUEUED or RUNNING) request: a newer one takes its place. Slots are given first come,
first served within a trigger, EXPLICIT before AUTOMATIC before PREFETCH. A newcomer that finds the queue full is shed,
unless it takes another's place: so the queue may for a moment be longer by one for each slot that is being freed.
"""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from completion_server.core.clock import Deadline
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Trigger


@dataclass(frozen=True, slots=True)
class Claim:
    """What the book needs to know of a request."""

    id: str
    lane: Hashable
    """Whom it belongs to: a newer claim on the same lane takes its place."""
    session: str
    """Sequences are compared within a session; across sessions the later arrival is the newer."""
    sequence: int
    trigger: Trigger
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class Start:
    """Begin the work: it holds a slot from now on."""

    id: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the work; say `work_done` when it has stopped."""

    id: str


@dataclass(frozen=True, slots=True)
class End:
    """Tell the caller. The request's only one."""

    id: str
    outcome: Outcome


Action = Start | Abort | End


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
    state: State = State.QUEUED


SUPERSEDED = Outcome(FinishReason.SUPERSEDED)
CANCELLED = Outcome(FinishReason.CANCELLED)
DEADLINE = Outcome(FinishReason.DEADLINE)


@dataclass(slots=True)
class Book:
    """The live requests, their lanes, the queue and the slots."""

    num_slots: int
    max_queued: int
    retry_after_ms: int = 1000
    """What a shed caller is told."""
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _lanes: dict[Hashable, str] = field(default_factory=dict)
    _queues: tuple[dict[str, _Entry], ...] = field(default_factory=lambda: tuple({} for _ in Trigger))
    _deadlines: list[tuple[float, str]] = field(default_factory=list)
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
    def next_deadline(self) -> float | None:
        """When `tick` must be called at the latest, in clock seconds."""
        while self._deadlines and not self._is_live(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def submit(self, claim: Claim) -> list[Action]:
        """Take a new request in, or end it at once."""
        if claim.id in self._entries:
            msg = f"request {claim.id} is in the book already"
            raise IllegalTransitionError(msg)
        actions: list[Action] = []
        holder = self._entries.get(self._lanes.get(claim.lane, ""))
        if holder is not None:
            if holder.claim.session == claim.session and holder.claim.sequence >= claim.sequence:
                return [End(claim.id, SUPERSEDED)]
            actions += self._end(holder, SUPERSEDED)
        elif self._num_occupied >= self.num_slots and self.num_queued >= self.max_queued:
            return [End(claim.id, Outcome(FinishReason.SHED, ShedReason.OVERLOAD, self.retry_after_ms))]
        entry = self._entries[claim.id] = _Entry(claim)
        self._lanes[claim.lane] = claim.id
        self._queues[claim.trigger][claim.id] = entry
        if claim.deadline.at != float("inf"):
            heapq.heappush(self._deadlines, (claim.deadline.at, claim.id))
        return actions + self._fill()

    def end(self, request_id: str, outcome: Outcome) -> list[Action]:
        """End a live request from outside. One that is not live any more has had its End: nothing to do."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is State.ABORTING:
            return []
        return self._end(entry, outcome)

    def work_done(self, request_id: str, outcome: Outcome) -> list[Action]:
        """The work of a started request has stopped, by itself (`outcome` says how) or because it was told to."""
        entry = self._entries.get(request_id)
        if entry is None or entry.state is State.QUEUED:
            msg = f"work of request {request_id} ended, but none was started"
            raise IllegalTransitionError(msg)
        actions: list[Action] = []
        if entry.state is State.RUNNING:
            self._leave_lane(entry)
            actions.append(End(request_id, outcome))
        del self._entries[request_id]
        self._num_occupied -= 1
        return actions + self._fill()

    def tick(self, now: float) -> list[Action]:
        """End what is past its deadline."""
        actions: list[Action] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _at, request_id = heapq.heappop(self._deadlines)
            actions += self.end(request_id, DEADLINE)
        return actions

    def _end(self, entry: _Entry, outcome: Outcome) -> list[Action]:
        self._leave_lane(entry)
        claim = entry.claim
        if entry.state is State.RUNNING:
            entry.state = State.ABORTING
            return [End(claim.id, outcome), Abort(claim.id)]
        del self._queues[claim.trigger][claim.id]
        del self._entries[claim.id]
        return [End(claim.id, outcome)]

    def _fill(self) -> list[Action]:
        """Give free slots to those who wait."""
        actions: list[Action] = []
        for queue in self._queues:
            while queue and self._num_occupied < self.num_slots:
                request_id = next(iter(queue))
                queue.pop(request_id).state = State.RUNNING
                self._num_occupied += 1
                actions.append(Start(request_id))
        return actions

    def _leave_lane(self, entry: _Entry) -> None:
        del self._lanes[entry.claim.lane]

    def _is_live(self, request_id: str) -> bool:
        entry = self._entries.get(request_id)
        return entry is not None and entry.state is not State.ABORTING
