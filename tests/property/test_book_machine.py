"""Invariants of the book under any order of events."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Trigger
from completion_server.scheduling.actions import (
    CANCELLED,
    SUPERSEDED,
    Abort,
    Action,
    Finish,
    HandOver,
    Join,
    Reattach,
    Start,
)
from completion_server.scheduling.book import Book
from completion_server.scheduling.queue import ORDERS, QueueEntry
from completion_server.scheduling.shedding import Shedding
from tests.support.examples import examples

STOPPED = Outcome(FinishReason.STOP)
REFUSED = Outcome(FinishReason.SHED, ShedReason.RATE_LIMITED)
UNLIMITED = 1000
"""More requests than may wait in one run."""
SECONDS = st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.3, 1.0, 3.0])


class BookDriver(RuleBasedStateMachine):
    """Carries out a book's actions, and records what they did."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, QueueEntry] = {}
        self.ends: dict[str, Outcome] = {}
        self.newest: dict[object, tuple[int, float]] = {}
        """The newest sequence of each session, and when it last had a request."""
        self.working: set[str] = set()
        """Whom the work that goes on is for."""
        self.reattached: set[str] = set()
        self.aborted: set[str] = set()
        self.readers: dict[str, set[str]] = {}
        """Who has joined the work that goes on, by the request that has its slot."""
        self.over: set[str] = set()
        """Those whose work has no more text, but has not stopped."""
        self.key_of_work: dict[str, object] = {}
        """The answer that the work of each request gives from the beginning."""
        self.waits_since: dict[str, float] = {}
        self.allowed_s: dict[str, float] = {}
        """The least time to a first token that was reckoned with while a request waited."""
        self.now = 0.0

    @initialize(
        num_slots=st.integers(1, 3),
        max_queued=st.integers(0, 3) | st.just(UNLIMITED),
        order=st.sampled_from(sorted(ORDERS)),
        shedding=st.sampled_from(Shedding),
    )
    def open_book(self, num_slots: int, max_queued: int, order: str, shedding: Shedding) -> None:
        self.book = Book(num_slots, max_queued, order=ORDERS[order], shedding=shedding)
        self.most_slots = num_slots

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(request_id):
                    self.start(request_id)
                case Reattach(request_id, other_id) | Join(request_id, other_id) | HandOver(request_id, other_id):
                    self.move(action, request_id, other_id)
                case Abort(request_id):
                    assert request_id in self.working - self.aborted, "work that does not run was aborted"
                    self.aborted.add(request_id)
                case Finish(request_id, outcome):
                    assert request_id not in self.ends, "a request ended twice"
                    self.ends[request_id] = outcome
                    self.stop_waiting(request_id)
        self.check_sacrifices(actions)
        for request_id in self.waits_since:
            self.allowed_s[request_id] = min(self.allowed_s.get(request_id, math.inf), self.book.latency.first_token_s)

    def move(self, action: Action, request_id: str, other_id: str) -> None:
        moves = {Reattach: self.reattach, Join: self.join, HandOver: self.hand_over}
        moves[type(action)](request_id, other_id)

    def check_sacrifices(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Finish) and action.outcome.shed_reason is ShedReason.OVERLOAD:
                waiting = [entry.trigger for entry in self.waiting()]
                assert max(waiting, default=0) <= self.entries[action.id].trigger, "a better one was given up"

    def reattach(self, request_id: str, from_id: str) -> None:
        assert from_id not in self.ends, "the generation of an ended request was reattached"
        del self.waits_since[request_id]
        if from_id in self.joined:
            (joined,) = (each for each in self.readers.values() if from_id in each)
            joined.symmetric_difference_update({from_id, request_id})
        else:
            assert from_id in self.working - self.aborted, "a generation that does not go on was reattached"
            self.move_slot(request_id, from_id)
        self.reattached = (self.reattached - {from_id}) | {request_id}

    def join(self, request_id: str, leader_id: str) -> None:
        assert leader_id in self.working - self.aborted - self.over, "a generation without more text was joined"
        assert request_id not in self.ends, "an ended request joined"
        assert self.entries[request_id].answer_key is not None
        assert self.entries[request_id].answer_key == self.key_of_work[leader_id], "another answer"
        self.stop_waiting(request_id)
        self.readers[leader_id].add(request_id)

    def hand_over(self, request_id: str, from_id: str) -> None:
        assert request_id in self.readers[from_id], "a slot was given to a request that does not read"
        ranks = {each: self.rank(self.entries[each]) for each in self.readers[from_id]}
        assert ranks[request_id] == min(ranks.values()), "a less urgent request got the slot"
        self.readers[from_id].remove(request_id)
        self.move_slot(request_id, from_id)
        self.reattached.discard(from_id)

    def move_slot(self, request_id: str, from_id: str) -> None:
        for each in (self.working, self.over):
            if from_id in each:
                each.symmetric_difference_update({from_id, request_id})
        self.readers[request_id] = self.readers.pop(from_id)
        self.key_of_work[request_id] = self.key_of_work.pop(from_id)

    @property
    def joined(self) -> set[str]:
        """Those that read work whose slot another request has."""
        return set().union(*self.readers.values())

    @property
    def reading(self) -> set[str]:
        """Those that have a generation."""
        return (self.working - self.aborted) | self.joined

    def stop_waiting(self, request_id: str) -> None:
        """A request waits no longer, and reads no work of another one."""
        self.waits_since.pop(request_id, None)
        for each in self.readers.values():
            each.discard(request_id)

    def following(self) -> int:
        """Return how many of those that wait can wait for the answer of another one that waits."""
        keys = [entry.answer_key for entry in self.waiting() if entry.answer_key is not None]
        return len(keys) - len(set(keys))

    def leading(self) -> list[QueueEntry]:
        """Return those that wait for a slot of their own for sure."""
        keys = [entry.answer_key for entry in self.waiting()]
        return [entry for entry in self.waiting() if entry.answer_key is None or keys.count(entry.answer_key) == 1]

    def start(self, request_id: str) -> None:
        assert request_id not in self.ends, "an ended request started"
        assert request_id not in self.working, "a request started twice"
        entry = self.entries[request_id]
        for other in self.waiting():
            assert self.rank(entry) <= self.rank(other), "out of order"
        waits_since = self.waits_since.pop(request_id)
        if self.book.shedding is not Shedding.NEVER and waits_since < self.now:
            assert self.now < entry.ttft_deadline - self.book.latency.first_token_s, "one without hope started"
        self.working.add(request_id)
        self.readers[request_id] = set()
        self.key_of_work[request_id] = entry.answer_key

    def tick(self) -> None:
        self.carry_out(self.book.tick(self.now))
        for entry in self.live():
            assert not entry.deadline.is_past(self.now)
        assert self.book.next_tick is None or self.book.next_tick > self.now
        if self.book.shedding is not Shedding.NEVER:
            for entry in self.leading():
                assert self.now < entry.ttft_deadline - self.allowed_s[entry.id], "one without hope waits"

    def is_stale(self, entry: QueueEntry, holder: QueueEntry) -> bool:
        if holder.session == entry.session:
            return holder.sequence >= entry.sequence
        known = self.newest.get((self.lane(entry), entry.session), (0, -math.inf))
        return self.is_fresh(known) and known[0] > entry.sequence

    def is_fresh(self, known: tuple[int, float]) -> bool:
        return self.now - known[1] < 5.0

    def stop(self, request_id: str) -> None:
        for each in (self.working, self.reattached, self.aborted, self.over):
            each.discard(request_id)
        self.readers.pop(request_id, None)
        self.key_of_work.pop(request_id, None)

    def rank(self, entry: QueueEntry) -> tuple[int, float]:
        return entry.trigger, self.book.order(entry)

    def live(self) -> list[QueueEntry]:
        return [entry for request_id, entry in self.entries.items() if request_id not in self.ends]

    def waiting(self) -> list[QueueEntry]:
        return [self.entries[request_id] for request_id in self.waits_since]

    def candidates_of(self, entry: QueueEntry) -> set[str]:
        is_prefetch = entry.trigger is Trigger.PREFETCH
        return {
            each.id
            for each in self.live()
            if each.lane == entry.lane and (each.trigger is Trigger.PREFETCH or not is_prefetch)
        }

    @staticmethod
    def lane(entry: QueueEntry) -> tuple[object, bool]:
        return entry.lane, entry.trigger is Trigger.PREFETCH


class BookMachine(BookDriver):
    """Orders of events, and what holds after each."""

    ids = Bundle("ids")

    @rule(
        target=ids,
        user=st.integers(0, 2),
        session=st.integers(0, 1),
        sequence=st.integers(0, 5),
        trigger=st.sampled_from(Trigger),
        budget_s=SECONDS,
        timeout_s=st.none() | SECONDS,
        answer_key=st.none() | st.integers(0, 1),
        data=st.data(),
    )
    def submit(
        self,
        user: int,
        session: int,
        sequence: int,
        trigger: Trigger,
        budget_s: float,
        timeout_s: float | None,
        answer_key: int | None,
        data: st.DataObject,
    ) -> str:
        request_id = f"r{len(self.entries)}"
        deadline = NEVER if timeout_s is None else Deadline(self.now + timeout_s)
        ttft_deadline = min(self.now + budget_s, deadline.at)
        entry = QueueEntry(
            request_id, f"u{user}", f"s{session}", sequence, trigger, deadline, self.now, ttft_deadline, stamp=sequence,
            answer_key=answer_key,
        )  # fmt: skip
        candidates = self.book.candidates(entry)
        assert set(candidates) == self.candidates_of(entry)
        assert candidates == sorted(candidates, key=lambda candidate: candidate not in self.working), (
            "those that run come first"
        )
        reattach_to = data.draw(st.sampled_from([*candidates, None]), label="reattach to")
        holder = next((each for each in self.live() if self.lane(each) == self.lane(entry)), None)
        has_free_slot = self.book.num_occupied < self.book.num_slots
        goes_on = reattach_to in self.working | self.joined
        self.entries[request_id] = entry
        self.waits_since[request_id] = self.now
        self.carry_out(self.book.submit(entry, self.now, reattach_to=reattach_to))
        if holder is not None and self.is_stale(entry, holder):
            assert self.ends[request_id] == SUPERSEDED
            assert holder.id not in self.ends
            return request_id
        known = self.newest.get((self.lane(entry), entry.session), (0, -math.inf))
        self.newest[self.lane(entry), entry.session] = max(known[0] if self.is_fresh(known) else 0, sequence), self.now
        for loser in {holder.id if holder else None, reattach_to} - {None}:
            assert self.ends[str(loser)] == SUPERSEDED
        if goes_on:
            assert request_id in self.reattached & (self.working | self.joined)
        elif has_free_slot:
            assert request_id in self.working | self.joined, "a request was refused although a slot was free"
        elif holder is not None:
            assert request_id not in self.ends, "a request that supersedes another one was refused"
        return request_id

    @rule(target=ids, user=st.integers(0, 2), session=st.integers(0, 1), sequence=st.integers(0, 5))
    def answer(self, user: int, session: int, sequence: int) -> str:
        request_id = f"r{len(self.entries)}"
        entry = QueueEntry(request_id, f"u{user}", f"s{session}", sequence, Trigger.AUTOMATIC, arrived_at=self.now)
        holder = next((each for each in self.live() if self.lane(each) == self.lane(entry)), None)
        is_stale = holder is not None and self.is_stale(entry, holder)
        self.entries[request_id] = entry
        self.carry_out(self.book.answer(entry, REFUSED, self.now))
        assert self.ends[request_id] == (SUPERSEDED if is_stale else REFUSED)
        assert holder is None or (holder.id in self.ends) is not is_stale
        if not is_stale:
            known = self.newest.get((self.lane(entry), entry.session), (0, -math.inf))
            newest = max(known[0] if self.is_fresh(known) else 0, sequence)
            self.newest[self.lane(entry), entry.session] = newest, self.now
        return request_id

    @rule(user=st.integers(0, 2), stamp=st.integers(0, 5))
    def supersede_from_another_replica(self, user: int, stamp: int) -> None:
        older = [each.id for each in self.live() if each.lane == f"u{user}" and each.stamp < stamp]
        before = set(self.ends)
        self.carry_out(self.book.supersede(f"u{user}", stamp, self.now))
        assert {request_id for request_id in older if self.ends.get(request_id) != SUPERSEDED} == set()
        superseded = {each for each in set(self.ends) - before if self.ends[each] == SUPERSEDED}
        assert superseded == set(older), "only older ones of the lane are superseded"

    @rule(request_id=ids)
    def cancel(self, request_id: str) -> None:
        self.carry_out(self.book.end(request_id, CANCELLED, self.now))
        assert request_id in self.ends

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def work_stops(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.working)))
        readers = self.readers[request_id] | {request_id}
        is_aborted = request_id in self.aborted
        self.stop(request_id)
        self.carry_out(self.book.work_done(request_id, STOPPED, self.now))
        assert readers <= set(self.ends)
        assert is_aborted or {self.ends[each] for each in readers} == {STOPPED}

    @precondition(lambda self: self.working - self.aborted)
    @rule(data=st.data())
    def the_last_text_is_generated(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.working - self.aborted)))
        self.over.add(request_id)
        self.book.generation_over(request_id)

    @precondition(lambda self: self.reattached & self.reading)
    @rule(data=st.data())
    def diverges(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.reattached & self.reading)))
        self.reattached.remove(request_id)
        if request_id in self.joined:
            self.stop_waiting(request_id)
        elif not self.readers[request_id]:
            self.stop(request_id)
        self.waits_since[request_id] = self.now
        self.carry_out(self.book.diverged(request_id, self.now))
        assert request_id not in self.ends

    @precondition(lambda self: self.reading)
    @rule(data=st.data())
    def has_a_token(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.reading)))
        self.book.first_token(request_id, self.now)
        self.carry_out([])

    @rule(num_slots=st.integers(1, 4))
    def resize(self, num_slots: int) -> None:
        self.most_slots = max(self.most_slots, num_slots)
        self.carry_out(self.book.resize(num_slots, self.now))

    @rule(seconds=SECONDS, is_tick_late=st.booleans())
    def time_passes(self, seconds: float, is_tick_late: bool) -> None:
        self.now += seconds
        if not is_tick_late:
            self.tick()

    @precondition(lambda self: self.book.next_tick is not None)
    @rule()
    def it_wakes(self) -> None:
        assert self.book.next_tick is not None
        self.now = max(self.now, self.book.next_tick)
        self.tick()

    @invariant()
    def at_most_one_live_request_per_lane(self) -> None:
        lanes = [self.lane(entry) for entry in self.live()]
        assert len(lanes) == len(set(lanes))
        assert len(lanes) == self.book.num_live

    @invariant()
    def slots_are_neither_lost_nor_idle_while_a_request_waits(self) -> None:
        assert self.book.num_occupied == len(self.working) <= self.most_slots
        assert {entry.id for entry in self.live()} == set(self.waits_since) | self.reading
        assert len(set(self.waits_since) | self.reading) == len(self.waits_since) + len(self.reading)
        assert self.book.num_queued + self.book.num_joined == len(self.waits_since) + len(self.joined)
        assert len(self.joined) <= self.book.num_joined <= len(self.joined) + self.following()
        assert not (self.book.num_queued and self.book.num_occupied < self.book.num_slots)

    @invariant()
    def one_generation_is_enough_for_one_answer(self) -> None:
        if self.book.max_queued < UNLIMITED:
            return  # there may have been no room to join
        keys = [self.key_of_work[each] for each in self.working - self.aborted - self.over]
        keys = [key for key in keys if key is not None]
        assert len(keys) == len(set(keys))
        waiting = {entry.answer_key for entry in self.waiting()}
        assert not waiting & set(keys), "a request waits for an answer that is generated"
        assert self.book.num_joined == len(self.joined) + self.following()

    @invariant()
    def the_queue_is_bounded(self) -> None:
        assert self.book.num_live <= self.book.max_queued + self.most_slots

    @invariant()
    def work_for_an_ended_request_is_aborted(self) -> None:
        assert {request_id for request_id in self.working if request_id in self.ends} == self.aborted

    @invariant()
    def the_next_tick_is_not_after_the_earliest_deadline(self) -> None:
        times = [entry.deadline.at for entry in self.live()]
        if self.book.shedding is not Shedding.NEVER:
            times += [entry.ttft_deadline for entry in self.leading()]
        if (earliest := min(times, default=math.inf)) < math.inf:
            assert self.book.next_tick is not None
            assert self.book.next_tick <= earliest

    @invariant()
    def only_a_book_that_sheds_ends_requests_as_unreachable(self) -> None:
        reasons = {outcome.shed_reason for outcome in self.ends.values()}
        assert self.book.shedding is not Shedding.NEVER or ShedReason.DEADLINE_UNREACHABLE not in reasons

    def teardown(self) -> None:
        if not hasattr(self, "book"):
            return
        for request_id in self.entries:
            self.carry_out(self.book.end(request_id, CANCELLED, self.now))
        while self.working:
            request_id = self.working.pop()
            self.stop(request_id)
            self.carry_out(self.book.work_done(request_id, CANCELLED, self.now))
        assert set(self.ends) == set(self.entries)
        assert (self.book.num_live, self.book.num_queued, self.book.num_occupied) == (0, 0, 0)
        assert self.book.next_tick is None


BookMachine.TestCase.settings = settings(max_examples=examples(4), stateful_step_count=50)
TestBook = BookMachine.TestCase
