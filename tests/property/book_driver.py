"""Carries out the actions of a book, and checks each of them against what was recorded before."""

import math
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Trigger
from completion_server.requests.scheduling.queue import ORDERS
from completion_server.requests.scheduling.requests import LiveRequest, State
from completion_server.requests.scheduling.shedding import Shedding
from tests.support.recorded_book import (
    Abort,
    Action,
    Finish,
    Join,
    Reattach,
    RecordedBook,
    RecordedRequest,
    Start,
    Text,
)

STOPPED = Outcome(FinishReason.STOP)
FAILED = Outcome(FinishReason.ERROR)
REFUSED = Outcome(FinishReason.SHED, ShedReason.RATE_LIMITED)
UNLIMITED = 1000
"""More requests than may wait in one run."""
SECONDS = st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.3, 1.0, 3.0])


@dataclass
class Work:
    """A generation as the actions tell of it."""

    prefix: str | None
    key: object
    leader: str
    readers: set[str]
    text: str = ""
    is_over: bool = False
    """No request may begin to read it: it has no more text, or no request reads it."""
    is_aborted: bool = False
    joined_now: set[str] = field(default_factory=set)


class BookDriver(RuleBasedStateMachine):
    """Carries out a book's actions, and records what they did."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[str, RecordedRequest] = {}
        self.ends: dict[str, Outcome] = {}
        self.newest: dict[object, tuple[int, float]] = {}
        """The newest sequence of each session, and when it last had a request."""
        self.works: dict[str, Work] = {}
        """The generations that have not stopped."""
        self.received: dict[str, str] = {}
        """The text that each request has been given."""
        self.reattached: set[str] = set()
        self.waits_since: dict[str, float] = {}
        self.allowed_s: dict[str, float] = {}
        """The least time to a first token that was reckoned with while a request waited."""
        self.inheriting: set[str] = set()
        """Those that wait for the slot of a generation that they diverged from: that is never too late."""
        self.now = 0.0

    @initialize(
        num_slots=st.integers(1, 3),
        max_queued=st.integers(0, 3) | st.just(UNLIMITED),
        order=st.sampled_from(sorted(ORDERS)),
        shedding=st.sampled_from(Shedding),
    )
    def open_book(self, num_slots: int, max_queued: int, order: str, shedding: Shedding) -> None:
        self.book = RecordedBook(num_slots, max_queued, order=ORDERS[order], shedding=shedding)
        self.most_slots = num_slots

    def carry_out(self, actions: list[Action]) -> None:  # noqa: C901 - one case for each action
        for work in self.works.values():
            work.joined_now.clear()
        for action in actions:
            match action:
                case Start(request_id):
                    self.start(request_id)
                case Reattach(request_id, generation_id, _, text):
                    self.attach(request_id, generation_id, text)
                    self.reattached.add(request_id)
                    self.works[generation_id].leader = self.book.readers(generation_id)[-1]
                case Join(request_id, generation_id, _, text):
                    self.attach(request_id, generation_id, text)
                    assert self.requests[request_id].answer_key is not None
                    assert self.requests[request_id].answer_key == self.works[generation_id].key, "another answer"
                case Text(request_id, text):
                    assert request_id in self.reading, "text for a request that reads nothing"
                    self.received[request_id] += text
                case Abort(generation_id):
                    assert not self.works[generation_id].readers, "a generation that is needed was aborted"
                    assert not self.works[generation_id].is_aborted, "a generation was aborted twice"
                    self.works[generation_id].is_aborted = True
                case Finish(request_id, outcome):
                    assert request_id not in self.ends, "a request ended twice"
                    self.ends[request_id] = outcome
                    self.leave(request_id)
        self.check_sacrifices(actions)
        self.check_successors()
        self.inheriting = {each.id for each in self.live() if each.inherits_slot}
        for request_id in self.waits_since:
            self.allowed_s[request_id] = min(self.allowed_s.get(request_id, math.inf), self.book.latency.first_token_s)

    def start(self, request_id: str) -> None:
        assert request_id not in self.ends, "an ended request started"
        assert request_id not in self.works, "a generation started twice"
        request = self.requests[request_id]
        for other in self.waiting():
            assert self.rank(request) <= self.rank(other), "out of order"
        waits_since = self.waits_since.pop(request_id)
        is_hurried = self.book.shedding is not Shedding.NEVER and request_id not in self.inheriting
        if is_hurried and waits_since < self.now:
            assert self.now < request.ttft_deadline - self.book.latency.first_token_s, "one without hope started"
        prefix = None if request.continuation is None else request.continuation.prefix
        self.works[request_id] = Work(prefix, request.answer_key, request_id, {request_id})
        self.received[request_id] = ""

    def attach(self, request_id: str, generation_id: str, text: str) -> None:
        work = self.works[generation_id]
        assert request_id not in self.ends, "an ended request reads"
        assert request_id not in self.reading, "a request reads twice"
        assert not work.is_over, "a generation without more text was read"
        assert not work.is_aborted, "an aborted generation was read"
        del self.waits_since[request_id]
        work.readers.add(request_id)
        work.joined_now.add(request_id)
        self.received[request_id] = text

    def leave(self, request_id: str) -> None:
        """A request waits no longer, and reads no generation."""
        self.waits_since.pop(request_id, None)
        self.reattached.discard(request_id)
        for work in self.works.values():
            work.readers.discard(request_id)

    def check_sacrifices(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Finish) and action.outcome.shed_reason is ShedReason.OVERLOAD:
                shed = self.requests[action.id]
                # A request that has joined another one has no place in the queue until it leads.
                waiting = [
                    request.trigger
                    for request in self.waiting()
                    if request.state is State.QUEUED and request.answer_key not in {shed.answer_key} - {None}
                ]
                assert max(waiting, default=0) <= shed.trigger, "a better one was given up"

    def check_successors(self) -> None:
        for generation_id, work in self.works.items():
            if work.readers and work.leader not in work.readers:
                work.leader = self.book.readers(generation_id)[-1]
                ranks = {each: self.rank(self.requests[each]) for each in work.readers - work.joined_now}
                assert ranks[work.leader] == min(ranks.values()), "a less urgent request got the slot"

    @property
    def reading(self) -> set[str]:
        """Those that read a generation with a slot."""
        return set().union(*(work.readers for work in self.works.values()))

    @property
    def num_joined(self) -> int:
        """How many read a generation that another one leads."""
        return sum(len(work.readers) - 1 for work in self.works.values() if work.readers)

    def typed(self, request_id: str, work: Work) -> str:
        """Return the text that the user of a reader has typed since its generation began."""
        continuation = self.requests[request_id].continuation
        return "" if continuation is None or work.prefix is None else continuation.prefix[len(work.prefix) :]

    def has_diverged(self, request_id: str, work: Work, finish: str | None) -> bool:
        """Return whether the text of a generation, with its latest token, is of no use to a reader."""
        typed = self.typed(request_id, work)
        if request_id not in self.reattached:
            return False
        if not (work.text.startswith(typed) or typed.startswith(work.text)):
            return True
        is_ahead = len(work.text) < len(typed)
        has_none = not self.received[request_id] and len(work.text) <= len(typed)
        return (finish is not None and is_ahead) or (finish == "length" and has_none)

    def following(self) -> int:
        """Return how many of those that wait can wait for the answer of another one that waits."""
        keys = [request.answer_key for request in self.waiting() if request.answer_key is not None]
        return len(keys) - len(set(keys))

    def leading(self) -> list[LiveRequest]:
        """Return those that wait for a free slot for sure, and not for that of a generation that they diverged from."""
        waiting = [each for each in self.waiting() if not each.inherits_slot]
        keys = [request.answer_key for request in self.waiting()]
        return [each for each in waiting if each.answer_key is None or keys.count(each.answer_key) == 1]

    def tick(self) -> None:
        self.carry_out(self.book.tick(self.now))
        for request in self.live():
            assert not request.deadline.is_past(self.now)
        assert self.book.next_tick is None or self.book.next_tick > self.now
        if self.book.shedding is not Shedding.NEVER:
            for request in self.leading():
                assert self.now < request.ttft_deadline - self.allowed_s[request.id], "one without hope waits"

    def note_sequence(self, request: LiveRequest) -> None:
        known = self.newest.get((request.lane_key, request.session), (0, -math.inf))
        newest = max(known[0] if self.is_fresh(known) else 0, request.sequence)
        self.newest[request.lane_key, request.session] = newest, self.now

    def is_stale(self, request: LiveRequest, holder: LiveRequest) -> bool:
        if holder.session == request.session:
            return holder.sequence >= request.sequence
        known = self.newest.get((request.lane_key, request.session), (0, -math.inf))
        return self.is_fresh(known) and known[0] > request.sequence

    def is_fresh(self, known: tuple[int, float]) -> bool:
        return self.now - known[1] < 5.0

    def rank(self, request: LiveRequest) -> tuple[int, float]:
        return request.trigger, self.book.order(request)

    def live(self) -> list[LiveRequest]:
        return [request for request_id, request in self.requests.items() if request_id not in self.ends]

    def holder(self, newcomer: LiveRequest) -> LiveRequest | None:
        return next((each for each in self.live() if each.lane_key == newcomer.lane_key), None)

    def waiting(self) -> list[LiveRequest]:
        return [self.requests[request_id] for request_id in self.waits_since]

    def serving(self, newcomer: LiveRequest) -> set[str]:
        """Return the generations of the user's live requests that say what the user has typed since."""
        is_prefetch = newcomer.trigger is Trigger.PREFETCH
        older = {
            each.id
            for each in self.live()
            if each.lane == newcomer.lane and (each.trigger is Trigger.PREFETCH or not is_prefetch)
        }
        found = set()
        for generation_id, work in self.works.items():
            if newcomer.continuation is None or work.prefix is None or work.is_over or not older & work.readers:
                continue
            typed = newcomer.continuation.prefix.removeprefix(work.prefix)
            if newcomer.continuation.prefix.startswith(work.prefix) and (
                work.text.startswith(typed) or typed.startswith(work.text)
            ):
                found.add(generation_id)
        return found
