"""The book of live requests: a pure state machine. Every call returns the actions to carry out and carries out none.

A request is in one of three states, and leaves the book from any of them:

    state     event        becomes    actions
    -         submit       QUEUED     -
    -         submit       RUNNING    Reattach: a running generation serves this request as well as the older one
    -         submit       (gone)     Finish: superseded (an older sequence than the lane's) or shed
    -         answer       (gone)     Finish: answered without a generation, or turned away
    QUEUED    slot free    RUNNING    Start
    QUEUED    end          (gone)     Finish
    RUNNING   reattach     (gone)     Finish: superseded; its generation and its slot are the newer request's now
    RUNNING   diverged     QUEUED     its slot is free; the generation that it reattached to is of no use to it
    RUNNING   end          ABORTING   Finish, Abort
    RUNNING   work done    (gone)     Finish; its slot is free
    ABORTING  work done    (gone)     its slot is free

"end" is a supersede, a cancel, a deadline or a shed. A request gets exactly one Finish, when it leaves QUEUED or
RUNNING for good. A slot is taken at Start and free only when the work is done, because an engine that was told to stop
has not stopped yet.

A lane holds at most one live (QUEUED or RUNNING) request: a newer one supersedes it. Prefetches have a lane of their
own beside it, so they never supersede a typed request. Slots are given by trigger, EXPLICIT before AUTOMATIC before
PREFETCH, and within a trigger by the `order`.

With shedding on, the book sheds: a request that can't have its first token in time any more; one that is predicted not
to have it; one with a slot but without a token when its time is up, while another waits; and, when the queue is full,
the last of the lowest class. An engine with a free slot sheds nothing: its next requests are how the book learns the
engine's latency.
"""

from dataclasses import dataclass, field

from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.scheduling.actions import DEADLINE, SUPERSEDED, Abort, Action, Finish, Reattach, Start
from completion_server.scheduling.lanes import Lanes
from completion_server.scheduling.latency import LatencyEstimates
from completion_server.scheduling.queue import Order, QueueEntry, TriggerQueues, earliest_deadline
from completion_server.scheduling.records import Record, State, Ticks
from completion_server.scheduling.shedding import Shedder, Shedding

_ABANDONED = (FinishReason.SUPERSEDED, FinishReason.CANCELLED)


class IllegalTransitionError(Exception):
    """An event is not allowed in the state of its request: a bug in the caller."""


@dataclass(slots=True)
class Book:
    """The live requests, their lanes, the queue and the slots. All times are clock seconds."""

    num_slots: int
    max_queued: int
    order: Order = earliest_deadline
    shedding: Shedding = Shedding.LATE
    max_retry_after_ms: int = 1000
    """The longest time after which a shed caller may be asked to retry."""
    latency: LatencyEstimates = field(default_factory=LatencyEstimates)
    num_occupied: int = field(default=0, init=False)
    """Slots taken, by requests that run and by work that is being aborted."""
    _records: dict[str, Record] = field(default_factory=dict, init=False)
    _lanes: Lanes = field(default_factory=Lanes, init=False)
    _queues: TriggerQueues = field(init=False)
    _shedder: Shedder = field(init=False)
    _past_budget: dict[str, None] = field(default_factory=dict, init=False)
    """Requests past their budget that keep a slot without a token, because no other request waits; the oldest first."""
    _ticks: Ticks = field(init=False)

    def __post_init__(self) -> None:
        """Begin empty."""
        self._queues = TriggerQueues(self.order)
        self._shedder = Shedder(self.shedding, self.latency, self._queues, self.max_retry_after_ms)
        self._ticks = Ticks(self._is_live)

    @property
    def num_queued(self) -> int:
        """Requests that wait for a slot."""
        return len(self._queues)

    @property
    def num_live(self) -> int:
        """Requests whose Finish is still to come."""
        return len(self._lanes)

    @property
    def next_tick(self) -> float | None:
        """The latest time at which `tick` must be called."""
        return self._ticks.next

    def candidates(self, entry: QueueEntry) -> list[str]:
        """Return the live requests to whose generation a newcomer may reattach; running ones first."""
        return [each.entry.id for each in self._lanes.candidates(entry)]

    def submit(self, entry: QueueEntry, now: float, *, reattach_to: str | None = None) -> list[Action]:
        """Take a new request in, or end it at once.

        `reattach_to` is one of its `candidates` whose generation serves it.
        """
        if entry.id in self._records:
            msg = f"request {entry.id} is in the book already"
            raise IllegalTransitionError(msg)
        record = Record(entry, queued_at=now)
        holder = self._lanes.holder(record.lane)
        if self._lanes.is_overtaken(record, now):
            return [Finish(entry.id, SUPERSEDED)]
        actions: list[Action] = []
        for older in {each.entry.id: each for each in (self._records.get(reattach_to or ""), holder) if each}.values():
            if older.entry.id == reattach_to and older.state is State.RUNNING:
                actions += self._reattach(record, older)
            else:
                actions += self._end(older, SUPERSEDED, now)
        if record.state is State.QUEUED and holder is None:
            refused = self._make_room(entry, now)
            actions += refused
            if any(isinstance(action, Finish) and action.id == entry.id for action in refused):
                return actions
        self._records[entry.id] = record
        self._lanes.enter(record)
        if record.state is State.QUEUED:
            return actions + self._enqueue(record, now)
        self._watch(record)
        return actions + self._fill(now)

    def answer(self, entry: QueueEntry, outcome: Outcome, now: float) -> list[Action]:
        """End a new request at once, without a generation. It supersedes the older one of its lane all the same."""
        record = Record(entry, queued_at=now)
        holder = self._lanes.holder(record.lane)
        if self._lanes.is_overtaken(record, now):
            return [Finish(entry.id, SUPERSEDED)]
        superseded = [] if holder is None else self._end(holder, SUPERSEDED, now)
        return [*superseded, Finish(entry.id, outcome)]

    def supersede(self, lane: str, stamp: int, now: float) -> list[Action]:
        """End the live requests of a lane that are older than `stamp`, the stamp of a request on another replica."""
        actions: list[Action] = []
        for holder in self._lanes.on(lane):
            if holder.entry.stamp < stamp:
                actions += self._end(holder, SUPERSEDED, now)
        return actions

    def end(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        """End a live request. Does nothing if the request is not live any more, because it has had its Finish."""
        record = self._records.get(request_id)
        if record is None or record.state is State.ABORTING:
            return []
        return self._end(record, outcome, now)

    def prompt_ready(self, request_id: str, num_new_tokens: int) -> None:
        """Note that the prompt of a request is built, and how many of its tokens the engine will have to compute."""
        record = self._records.get(request_id)
        if record is not None:
            record.num_new_tokens = num_new_tokens

    def first_token(self, request_id: str, now: float, num_new_tokens: int | None = None) -> None:
        """Note that a request has its first token, for which `num_new_tokens` tokens of its prompt were computed."""
        record = self._records.get(request_id)
        if record is None or record.has_token:
            return
        record.has_token = True
        self._past_budget.pop(request_id, None)
        if not record.is_reattached:
            size = record.num_new_tokens if num_new_tokens is None else num_new_tokens
            self.latency.first_token.add(now - record.slot_since, size)

    def diverged(self, request_id: str, now: float) -> list[Action]:
        """The generation that a request had reattached to is of no use to it and has stopped: it waits for a slot."""
        record = self._working(request_id)
        if record.state is not State.RUNNING:
            msg = f"request {request_id} has ended; its generation can't diverge any more"
            raise IllegalTransitionError(msg)
        self._free_slot(record, now)
        record.state, record.is_reattached, record.has_token = State.QUEUED, False, False
        record.queued_at = now
        return self._enqueue(record, now)

    def work_done(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        """Free the slot of work that has ended. `outcome` ends its request, unless that has ended before (abort)."""
        record = self._working(request_id)
        actions: list[Action] = []
        if record.state is State.RUNNING:
            self._lanes.leave(record)
            actions.append(Finish(request_id, outcome))
        del self._records[request_id]
        self._free_slot(record, now)
        return actions + self._fill(now)

    def tick(self, now: float) -> list[Action]:
        """End requests that are past their deadline, or have no time left for a first token."""
        actions: list[Action] = []
        while (request_id := self._ticks.pop_due(now)) is not None:
            record = self._records.get(request_id)
            if record is None or record.state is State.ABORTING:
                continue
            if record.entry.deadline.is_past(now):
                actions += self._end(record, DEADLINE, now)
            elif self._shedder.is_unreachable(record, now):
                actions += self._end(record, self._shed(record.entry, ShedReason.DEADLINE_UNREACHABLE), now)
            else:
                if record.state is State.RUNNING and not record.has_token and now >= record.entry.ttft_deadline:
                    self._past_budget[request_id] = None
                self._watch(record, now)
        return actions

    def resize(self, num_slots: int, now: float) -> list[Action]:
        """Change the number of slots. Requests that hold one too many keep it."""
        self.num_slots = num_slots
        return self._fill(now)

    def _reattach(self, record: Record, older: Record) -> list[Action]:
        self._past_budget.pop(older.entry.id, None)
        record.state, record.is_reattached, record.slot_since = State.RUNNING, True, older.slot_since
        self._lanes.leave(older)
        del self._records[older.entry.id]
        return [Reattach(record.entry.id, older.entry.id), Finish(older.entry.id, SUPERSEDED)]

    def _make_room(self, entry: QueueEntry, now: float) -> list[Action]:
        """Decide whether a newcomer that supersedes none may wait, and which request gives way to it."""
        if self.num_occupied < self.num_slots:
            return []
        if self._shedder.is_predicted_late(entry, now, self.num_slots):
            return [Finish(entry.id, self._shed(entry, ShedReason.DEADLINE_UNREACHABLE))]
        if self.num_queued < self.max_queued:
            return []
        last = self._queues.last_behind(entry)
        if last is not None:
            return self._end(self._records[last.id], self._shed(last, ShedReason.OVERLOAD), now)
        return [Finish(entry.id, self._shed(entry, ShedReason.OVERLOAD))]

    def _shed(self, entry: QueueEntry, reason: ShedReason) -> Outcome:
        return self._shedder.outcome(entry, reason, self.num_slots)

    def _watch(self, record: Record, now: float | None = None) -> None:
        """Have `tick` check a request when it may have to end."""
        self._ticks.add(self._shedder.next_look(record, now), record.entry.id, len(self._records))

    def _end(self, record: Record, outcome: Outcome, now: float) -> list[Action]:
        self._lanes.leave(record)
        entry = record.entry
        if record.state is State.RUNNING:
            record.state = State.ABORTING
            self._past_budget.pop(entry.id, None)
            if not record.has_token and not record.is_reattached:
                self.latency.gave_up(now - record.slot_since, record.num_new_tokens)
            return [Finish(entry.id, outcome), Abort(entry.id)]
        self._queues.remove(entry)
        self.latency.left_queue(now - record.queued_at, abandoned=outcome.reason in _ABANDONED)
        del self._records[entry.id]
        return [Finish(entry.id, outcome)]

    def _enqueue(self, record: Record, now: float) -> list[Action]:
        """Let a request wait. It is watched after free slots were granted, which may update the latency estimates."""
        self._queues.add(record.entry)
        actions = self._fill(now)
        if record.state is State.QUEUED:
            self._watch(record)
        return actions

    def _fill(self, now: float) -> list[Action]:
        """Give free slots to waiting requests that can still have their first token in time."""
        actions: list[Action] = []
        while self.num_occupied < self.num_slots and (entry := self._queues.first()) is not None:
            record = self._records[entry.id]
            if record.queued_at < now and self._shedder.is_unreachable(record, now):
                actions += self._end(record, self._shed(entry, ShedReason.DEADLINE_UNREACHABLE), now)
                continue
            self._queues.remove(entry)
            self.latency.left_queue(now - record.queued_at, abandoned=False)
            record.state, record.slot_since = State.RUNNING, now
            self.num_occupied += 1
            self._watch(record)
            actions.append(Start(entry.id))
        return actions + self._reclaim(now)

    def _reclaim(self, now: float) -> list[Action]:
        """Take slots from requests past their budget for waiting ones, less the slots that are coming free already."""
        actions: list[Action] = []
        num_aborting = self.num_occupied - (self.num_live - self.num_queued)
        for request_id in list(self._past_budget)[: max(0, self.num_queued - num_aborting)]:
            record = self._records[request_id]
            actions += self._end(record, self._shed(record.entry, ShedReason.DEADLINE_UNREACHABLE), now)
        return actions

    def _working(self, request_id: str) -> Record:
        record = self._records.get(request_id)
        if record is None or record.state is State.QUEUED:
            msg = f"work of request {request_id} ended, but none was started"
            raise IllegalTransitionError(msg)
        return record

    def _free_slot(self, record: Record, now: float) -> None:
        self.num_occupied -= 1
        self._past_budget.pop(record.entry.id, None)
        self.latency.held.add(now - record.slot_since)

    def _is_live(self, request_id: str) -> bool:
        record = self._records.get(request_id)
        return record is not None and record.state is not State.ABORTING
