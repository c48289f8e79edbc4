"""The book of live requests: a pure state machine. Every call returns the actions to carry out and carries out none.

A request is in one of four states, and leaves the book from any of them:

    state     event        becomes    actions
    -         submit       QUEUED     -
    -         submit       JOINED     Join, if the generation runs: it answers another live request with the same answer
    -         submit       RUNNING    Reattach: a running generation serves this request as well as the older one
    -         submit       JOINED     Reattach: as before; the older one has joined the generation
    -         submit       (gone)     Finish: superseded (an older sequence than the lane's) or shed
    -         answer       (gone)     Finish: answered without a generation, or turned away
    QUEUED    slot free    RUNNING    Start, and Join for each request that has joined it
    QUEUED    submit       JOINED     - ; the newcomer has the same answer and goes before it
    QUEUED    end          (gone)     Finish; a request that has joined it is QUEUED in its place
    RUNNING   reattach     (gone)     Finish: superseded; its generation and its slot are the newer request's now
    RUNNING   diverged     QUEUED     its slot is free; the generation that it reattached to is of no use to it
    RUNNING   diverged     QUEUED     HandOver, if a request has joined it
    RUNNING   end          ABORTING   Finish, Abort
    RUNNING   end          (gone)     HandOver, Finish, if a request has joined it
    RUNNING   work done    (gone)     Finish, also of those that have joined it; its slot is free
    ABORTING  work done    (gone)     its slot is free
    JOINED    end          (gone)     Finish
    JOINED    diverged     QUEUED     it had reattached, see RUNNING
    JOINED    reattach     (gone)     Finish: superseded

"end" is a supersede, a cancel, a deadline, a shed, or the end of an answer whose generation goes on for others. A
request gets exactly one Finish, when it leaves QUEUED, JOINED or RUNNING for good. A slot is taken at Start and free
only when the work is done, because an engine that was told to stop has not stopped yet.

A JOINED request has no slot. When its leader, the request that holds the slot or waits for it, leaves, the first of
those that have joined it gets its place or its slot. A request that diverged is taken in like a new one.

A lane holds at most one live (QUEUED, JOINED or RUNNING) request: a newer one supersedes it. Prefetches have a lane of
their own beside it, so they never supersede a typed request. Slots are given by trigger, EXPLICIT before AUTOMATIC
before PREFETCH, and within a trigger by the `order`.

With shedding on, the book sheds: a request that can't have its first token in time any more; one that is predicted not
to have it; one with a slot but without a token when its time is up, while another waits; and, when the queue is full,
the last of the lowest class. An engine with a free slot sheds nothing: its next requests are how the book learns the
engine's latency.
"""

from dataclasses import dataclass, field

from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.scheduling.actions import (
    DEADLINE,
    SUPERSEDED,
    Abort,
    Action,
    Finish,
    HandOver,
    Join,
    Reattach,
    Start,
)
from completion_server.scheduling.latency import LatencyEstimates
from completion_server.scheduling.live.flights import Flights
from completion_server.scheduling.live.lanes import Lanes
from completion_server.scheduling.live.records import LiveRequest, State
from completion_server.scheduling.live.watch import DeadlineWatch
from completion_server.scheduling.queue import Order, QueueEntry, TriggerQueues, earliest_deadline
from completion_server.scheduling.shedding import Shedder, Shedding

_ABANDONED = (FinishReason.SUPERSEDED, FinishReason.CANCELLED, FinishReason.STOP, FinishReason.LENGTH)
"""Ends that don't depend on the queue's length. A queued request with STOP or LENGTH was answered from a cache."""


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
    _records: dict[str, LiveRequest] = field(default_factory=dict, init=False)
    _lanes: Lanes = field(default_factory=Lanes, init=False)
    _queues: TriggerQueues = field(init=False)
    _flights: Flights = field(init=False)
    _shedder: Shedder = field(init=False)
    _watch: DeadlineWatch = field(init=False)

    def __post_init__(self) -> None:
        """Begin empty."""
        self._queues = TriggerQueues(self.order)
        self._shedder = Shedder(self.shedding, self.latency, self._queues, self.max_retry_after_ms)
        self._flights = Flights(self._queues, self.max_queued)
        self._watch = DeadlineWatch(self._shedder, self._records)

    @property
    def num_queued(self) -> int:
        """Requests that wait for a slot."""
        return len(self._queues)

    @property
    def num_joined(self) -> int:
        """Requests that the generation of another one answers, now or when it has a slot."""
        return self._flights.num_joined

    @property
    def num_live(self) -> int:
        """Requests whose Finish is still to come."""
        return len(self._lanes)

    @property
    def next_tick(self) -> float | None:
        """The latest time at which `tick` must be called."""
        return self._watch.next

    @property
    def live_entries(self) -> list[QueueEntry]:
        """The requests whose Finish is still to come."""
        return self._lanes.entries()

    def candidates(self, entry: QueueEntry) -> list[str]:
        """Return the live requests to whose generation a newcomer may reattach; running ones first."""
        return [each.entry.id for each in self._lanes.candidates(entry)]

    def submit(self, entry: QueueEntry, now: float, *, reattach_to: str | None = None) -> list[Action]:
        """Take a new request in, or end it at once. `reattach_to` is a candidate whose generation serves it."""
        if entry.id in self._records:
            msg = f"request {entry.id} is in the book already"
            raise IllegalTransitionError(msg)
        record, actions = LiveRequest(entry, queued_at=now), list[Action]()
        holder = self._lanes.holder(record.lane)
        if self._lanes.is_overtaken(record, now):
            return [Finish(entry.id, SUPERSEDED)]
        self._records[entry.id] = record
        for older in {each.entry.id: each for each in (self._records.get(reattach_to or ""), holder) if each}.values():
            if older.entry.id == reattach_to and self._flights.has_generation(older):
                actions += self._reattach(record, older)
            else:
                actions += self._end(older, SUPERSEDED, now)
        leader = self._flights.find(entry.answer_key)
        if record.state is State.QUEUED and holder is None and leader is None:
            actions += self._make_room(entry, now)
            if any(action.id == entry.id for action in actions):  # the newcomer is shed
                del self._records[entry.id]
                return actions
        self._lanes.enter(record)
        if record.state is State.QUEUED:
            return actions + self._take_in(record, leader, now)
        self._watch.add(record)
        return actions + self._fill(now)

    def answer(self, entry: QueueEntry, outcome: Outcome, now: float) -> list[Action]:
        """End a new request at once, without a generation. It supersedes the older one of its lane all the same."""
        record = LiveRequest(entry, queued_at=now)
        holder = self._lanes.holder(record.lane)
        if self._lanes.is_overtaken(record, now):
            return [Finish(entry.id, SUPERSEDED)]
        superseded = [] if holder is None else self._end(holder, SUPERSEDED, now)
        return [*superseded, Finish(entry.id, outcome)]

    def supersede(self, lane: str, stamp: int, now: float) -> list[Action]:
        """End the live requests of a lane that are older than `stamp`, the stamp of a request on another replica.

        Prefetches of the lane, which have no stamp, end too: the user is elsewhere.
        """
        actions: list[Action] = []
        for holder in [each for each in self._lanes.on(lane) if each.entry.stamp < stamp]:
            actions += self._end(holder, SUPERSEDED, now)
        return actions

    def end(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        """End a live request. Does nothing if the request is not live any more, because it has had its Finish."""
        record = self._records.get(request_id)
        return [] if record is None or record.state is State.ABORTING else self._end(record, outcome, now)

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
        self._watch.forgive(record)
        if not record.is_reattached and record.state is not State.JOINED:
            size = record.num_new_tokens if num_new_tokens is None else num_new_tokens
            self.latency.had_first_token(record.slot_since, now, size)

    def generation_over(self, request_id: str) -> None:
        """Note that a request's generation will have no more text: no other request may join it."""
        self._flights.close(request_id)

    def diverged(self, request_id: str, now: float) -> list[Action]:
        """The generation that a request had reattached to is of no use to it. It has stopped, or goes on for others."""
        record = self._require(request_id, State.RUNNING, State.JOINED)
        actions = self._hand_over(record)
        if record.state is State.RUNNING and not actions:
            self._free_slot(record, now)
        record.state, record.is_reattached, record.has_token = State.QUEUED, False, False
        record.queued_at = now
        return actions + self._take_in(record, self._flights.find(record.entry.answer_key), now)

    def work_done(self, request_id: str, outcome: Outcome, now: float) -> list[Action]:
        """Free the slot of work that has ended. `outcome` ends the requests that it was for, if they are live."""
        record = self._require(request_id, State.RUNNING, State.ABORTING)
        actions: list[Action] = []
        for each in [record, *self._flights.joined(record)]:
            if each.state is not State.ABORTING:
                self._lanes.leave(each)
                actions.append(Finish(each.entry.id, outcome))
            del self._records[each.entry.id]
        self._flights.leave(record)
        self._free_slot(record, now)
        return actions + self._fill(now)

    def tick(self, now: float) -> list[Action]:
        """End requests that are past their deadline, or have no time left for a first token."""
        actions: list[Action] = []
        while (record := self._watch.pop_due(now)) is not None:
            is_past = record.entry.deadline.is_past(now)
            actions += self._end(record, DEADLINE if is_past else self._unreachable(record.entry), now)
        return actions

    def resize(self, num_slots: int, now: float) -> list[Action]:
        """Change the number of slots. Requests that hold one too many keep it."""
        self.num_slots = num_slots
        return self._fill(now)

    def _reattach(self, record: LiveRequest, older: LiveRequest) -> list[Action]:
        """Have a newcomer read the generation of an older request in its place, with its slot if it has one."""
        self._flights.replace(older, record)
        record.state, record.is_reattached, record.slot_since = older.state, True, older.slot_since
        self._watch.forgive(older)
        self._lanes.leave(older)
        del self._records[older.entry.id]
        return [Reattach(record.entry.id, older.entry.id), Finish(older.entry.id, SUPERSEDED)]

    def _take_in(self, record: LiveRequest, leader: LiveRequest | None, now: float) -> list[Action]:
        """Let a request join a leader with the same answer, or wait for a slot."""
        self._flights.take_in(record, leader)
        actions: list[Action] = []
        if leader is not None and leader.state is State.RUNNING:
            actions.append(Join(record.entry.id, leader.entry.id))
        actions += self._fill(now)
        if record.state is not State.RUNNING:  # after `_fill`, which may update the latency estimates
            self._watch.add(record)
        return actions

    def _hand_over(self, record: LiveRequest) -> list[Action]:
        """Give the place or the slot of a request to one that has joined it; the request leaves its flight."""
        self._watch.forgive(record)
        successor = self._flights.hand_over(record)
        if successor is None:
            return []
        self._watch.add(successor)
        return [HandOver(successor.entry.id, record.entry.id)] if successor.state is State.RUNNING else []

    def _make_room(self, entry: QueueEntry, now: float) -> list[Action]:
        """Shed a newcomer that supersedes none and may not wait, or the request that gives way to it."""
        if self.num_occupied < self.num_slots:
            return []
        shed = self._shedder.make_room(entry, now, self.num_slots, has_room=self._flights.has_room)
        if shed is None:
            return []
        other, outcome = shed
        return [Finish(other.id, outcome)] if other is entry else self._end(self._records[other.id], outcome, now)

    def _unreachable(self, entry: QueueEntry) -> Outcome:
        return self._shedder.outcome(entry, ShedReason.DEADLINE_UNREACHABLE, self.num_slots)

    def _end(self, record: LiveRequest, outcome: Outcome, now: float) -> list[Action]:
        entry = record.entry
        self._lanes.leave(record)
        handed_over = self._hand_over(record)
        if record.state is State.RUNNING and not handed_over:
            record.state = State.ABORTING
            if not record.has_token and not record.is_reattached:
                self.latency.gave_up(record.slot_since, now, record.num_new_tokens)
            return [Finish(entry.id, outcome), Abort(entry.id)]
        if record.state is State.QUEUED:
            self._queues.remove(entry)
            self.latency.left_queue(now - record.queued_at, abandoned=outcome.reason in _ABANDONED)
        del self._records[entry.id]
        return [*handed_over, Finish(entry.id, outcome)]

    def _fill(self, now: float) -> list[Action]:
        """Give free slots to waiting requests that can still have their first token in time."""
        actions: list[Action] = []
        while self.num_occupied < self.num_slots and (entry := self._queues.first()) is not None:
            record = self._records[entry.id]
            if record.queued_at < now and self._shedder.is_unreachable(record, now):
                actions += self._end(record, self._unreachable(entry), now)
                continue
            self._queues.remove(entry)
            self.latency.left_queue(now - record.queued_at, abandoned=False)
            record.state, record.slot_since = State.RUNNING, now
            self.latency.took_slot(now)
            self.num_occupied += 1
            self._watch.add(record)
            actions.append(Start(entry.id))
            actions += [Join(each.entry.id, entry.id) for each in self._flights.joined(record)]
        return actions + self._reclaim(now)

    def _reclaim(self, now: float) -> list[Action]:
        """Take slots from requests past their budget for waiting ones, less the slots that are coming free already."""
        actions: list[Action] = []
        num_missing = self.num_live - self.num_joined - self.num_occupied
        for record in self._watch.past_budget:
            if num_missing > 0:
                actions += self._end(record, self._unreachable(record.entry), now)
                num_missing -= record.state is State.ABORTING  # else another request has its slot now
        return actions

    def _free_slot(self, record: LiveRequest, now: float) -> None:
        self.num_occupied -= 1
        self._watch.forgive(record)
        self.latency.freed_slot(record.slot_since, now)

    def _require(self, request_id: str, *states: State) -> LiveRequest:
        record = self._records.get(request_id)
        if record is None or record.state not in states:
            msg = f"request {request_id} is {'unknown' if record is None else record.state.value}"
            raise IllegalTransitionError(msg)
        return record
