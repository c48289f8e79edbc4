"""Invariants of the book under any order of events: who lives, who waits, and who reads which generation."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, precondition, rule

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.events import GenerationDiverged
from completion_server.core.outcome import CANCELLED, SUPERSEDED, ShedReason
from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from completion_server.requests.scheduling.reattach import Continuation
from completion_server.requests.scheduling.shedding import Shedding
from tests.property.book_driver import FAILED, REFUSED, SECONDS, STOPPED, UNLIMITED, BookDriver
from tests.support.examples import examples
from tests.support.recorded_book import RecordedRequest, Report, Text


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
        prefix=st.sampled_from(["x", "x", "x", "xa", "xab", None]),
        shares=st.sampled_from([True, True, False]),
    )
    def submit(
        self,
        user: int,
        session: int,
        sequence: int,
        trigger: Trigger,
        budget_s: float,
        timeout_s: float | None,
        prefix: str | None,
        shares: bool,
    ) -> str:
        request_id = f"r{len(self.requests)}"
        deadline = NEVER if timeout_s is None else Deadline(self.now + timeout_s)
        ttft_deadline = min(self.now + budget_s, deadline.at)
        request = RecordedRequest(
            request_id, f"u{user}", f"s{session}", sequence, trigger, deadline, self.now, ttft_deadline, stamp=sequence,
            continuation=None if prefix is None else Continuation(prefix, max_tokens=UNLIMITED),
            answer_key=prefix if shares else None,
        )  # fmt: skip
        holder, serving = self.holder(request), self.serving(request)
        has_free_slot = self.book.num_occupied < self.book.num_slots
        self.requests[request_id] = request
        self.waits_since[request_id] = self.now
        self.carry_out(self.book.submit(request, self.now))
        if holder is not None and self.is_stale(request, holder):
            assert self.ends[request_id] == SUPERSEDED
            assert holder.id not in self.ends
            return request_id
        self.note_sequence(request)
        assert holder is None or self.ends[holder.id] == SUPERSEDED
        assert (request_id in self.reattached) == bool(serving), "typed text decides about a reattach, nothing else"
        if serving:
            assert request_id in set().union(*(self.works[each].readers for each in serving))
        elif has_free_slot:
            assert request_id in self.reading, "a request was refused although a slot was free"
        elif holder is not None:
            assert request_id not in self.ends, "a request that supersedes another one was refused"
        return request_id

    @rule(target=ids, user=st.integers(0, 2), session=st.integers(0, 1), sequence=st.integers(0, 5))
    def answer(self, user: int, session: int, sequence: int) -> str:
        request_id = f"r{len(self.requests)}"
        request = RecordedRequest(
            request_id, f"u{user}", f"s{session}", sequence, Trigger.AUTOMATIC, arrived_at=self.now
        )
        holder = self.holder(request)
        is_stale = holder is not None and self.is_stale(request, holder)
        self.requests[request_id] = request
        self.carry_out(self.book.answer(request, REFUSED, self.now))
        assert self.ends[request_id] == (SUPERSEDED if is_stale else REFUSED)
        assert holder is None or (holder.id in self.ends) is not is_stale
        if not is_stale:
            self.note_sequence(request)
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

    @precondition(lambda self: any(not work.is_over for work in self.works.values()))
    @rule(data=st.data(), token=st.sampled_from("aab"), finish=st.sampled_from([None, None, None, "stop", "length"]))
    def text_is_generated(self, data: st.DataObject, token: str, finish: str | None) -> None:
        generation_id = data.draw(st.sampled_from([each for each, work in self.works.items() if not work.is_over]))
        work = self.works[generation_id]
        work.text += token
        work.is_over = finish is not None
        diverged = [each for each in work.readers if self.has_diverged(each, work, finish)]
        for request_id in diverged:
            self.leave(request_id)
            self.waits_since[request_id] = self.now
        actions = self.book.output(generation_id, Output(token, 1, finish), self.now)
        self.carry_out(actions)
        assert sum(isinstance(each, Report) and isinstance(each.event, GenerationDiverged) for each in actions) == len(
            diverged
        )
        for action in actions:
            if isinstance(action, Text) and action.finish is not None and action.id not in self.ends:
                self.answer_is_complete(action.id, generation_id)

    @precondition(lambda self: self.reading)
    @rule(data=st.data())
    def a_text_rule_ends_an_answer(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.reading)))
        self.answer_is_complete(request_id, next(k for k, work in self.works.items() if request_id in work.readers))

    def answer_is_complete(self, request_id: str, generation_id: str) -> None:
        work = self.works[generation_id]
        work.is_over = work.is_over or work.readers == {request_id}
        self.carry_out(self.book.end(request_id, STOPPED, self.now))
        assert self.ends[request_id] == STOPPED

    @precondition(lambda self: self.works)
    @rule(data=st.data())
    def a_generation_stops(self, data: st.DataObject) -> None:
        generation_id = data.draw(st.sampled_from(sorted(self.works)))
        work = self.works.pop(generation_id)
        outcome = FAILED if self.book.readers(generation_id) else None
        self.carry_out(self.book.stopped(generation_id, outcome, self.now))
        assert {self.ends.get(each) for each in work.readers} <= {FAILED}

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
        lanes = [request.lane_key for request in self.live()]
        assert len(lanes) == len(set(lanes))
        assert len(lanes) == self.book.num_live

    @invariant()
    def every_reader_has_the_text_after_what_its_user_typed(self) -> None:
        for generation_id, work in self.works.items():
            readers = self.book.readers(generation_id)
            assert sorted(readers) == sorted(work.readers)
            assert not readers or readers[-1] == work.leader
            assert work.is_aborted is not bool(readers), "a generation goes on for nobody"
            for each in readers:
                typed = self.typed(each, work)
                assert work.text.startswith(typed) or typed.startswith(work.text), "one reads what it did not type"
                assert self.received[each] == work.text[len(typed) :]

    @invariant()
    def slots_are_neither_lost_nor_idle_while_a_request_waits(self) -> None:
        assert self.book.num_occupied == len(self.works) <= self.most_slots
        assert {request.id for request in self.live()} == set(self.waits_since) | self.reading
        assert not set(self.waits_since) & self.reading
        assert self.book.num_queued + self.book.num_joined == len(self.waits_since) + self.num_joined
        assert self.num_joined <= self.book.num_joined <= self.num_joined + self.following()
        assert not (self.book.num_queued and self.book.num_occupied < self.book.num_slots)

    @invariant()
    def one_generation_is_enough_for_one_answer(self) -> None:
        if self.book.max_queued < UNLIMITED:
            return  # there may have been no room to join
        keys = [work.key for work in self.works.values() if work.readers and not work.is_over and work.key is not None]
        assert len(keys) == len(set(keys))
        assert not {request.answer_key for request in self.waiting()} & set(keys), "one waits for what is generated"
        assert self.book.num_joined == self.num_joined + self.following()

    @invariant()
    def the_queue_is_bounded(self) -> None:
        assert self.book.num_live <= self.book.max_queued + self.most_slots

    @invariant()
    def the_next_tick_is_not_after_the_earliest_deadline(self) -> None:
        times = [request.deadline.at for request in self.live()]
        if self.book.shedding is not Shedding.NEVER:
            times += [request.ttft_deadline for request in self.leading()]
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
        for request_id in self.requests:
            self.carry_out(self.book.end(request_id, CANCELLED, self.now))
        while self.works:
            generation_id, _ = self.works.popitem()
            self.carry_out(self.book.stopped(generation_id, None, self.now))
        assert set(self.ends) == set(self.requests)
        assert self.book.is_idle
        assert self.book.next_tick is None


BookMachine.TestCase.settings = settings(max_examples=examples(4), stateful_step_count=50)
TestBook = BookMachine.TestCase
