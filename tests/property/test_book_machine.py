"""The book under any order of events, against what must always hold."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from completion_server.core.clock import Deadline
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.scheduling.book import CANCELLED, Abort, Action, Book, Claim, End, Start

NUM_SLOTS = 2
MAX_QUEUED = 3


class BookMachine(RuleBasedStateMachine):
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(NUM_SLOTS, MAX_QUEUED)
        self.claims: dict[str, Claim] = {}
        self.ends: dict[str, Outcome] = {}
        self.working: set[str] = set()
        self.aborted: set[str] = set()
        self.now = 0.0

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case End(request_id, outcome):
                    assert request_id not in self.ends, "a request ended twice"
                    self.ends[request_id] = outcome
                case Start(request_id):
                    assert request_id not in self.ends, "an ended request started"
                    assert request_id not in self.working, "a request started twice"
                    self.working.add(request_id)
                case Abort(request_id):
                    assert request_id in self.working, "work that does not run was aborted"
                    self.aborted.add(request_id)

    @rule(
        target=ids,
        user=st.integers(0, 3),
        session=st.integers(0, 1),
        sequence=st.integers(0, 5),
        trigger=st.sampled_from(Trigger),
        budget=st.floats(0.1, 5.0),
    )
    def submit(self, user: int, session: int, sequence: int, trigger: Trigger, budget: float) -> str:
        request_id = f"r{len(self.claims)}"
        lane = f"u{user}" + ("-prefetch" if trigger is Trigger.PREFETCH else "")
        claim = Claim(request_id, lane, f"s{session}", sequence, trigger, Deadline(self.now + budget))
        rival = self.live_on(lane)
        self.claims[request_id] = claim
        self.carry_out(self.book.submit(claim))
        if rival is not None:
            is_late = rival.session == claim.session and rival.sequence >= sequence
            loser = request_id if is_late else rival.id
            assert self.ends[loser].reason is FinishReason.SUPERSEDED
            if is_late:
                assert rival.id not in self.ends
        return request_id

    @rule(request_id=ids)
    def cancel(self, request_id: str) -> None:
        self.carry_out(self.book.end(request_id, CANCELLED))
        assert request_id in self.ends

    @rule(data=st.data())
    def work_stops(self, data: st.DataObject) -> None:
        if self.working:
            request_id = data.draw(st.sampled_from(sorted(self.working)))
            self.working.discard(request_id)
            self.carry_out(self.book.work_done(request_id, Outcome(FinishReason.STOP)))
            assert request_id in self.ends

    @rule(seconds=st.floats(0.1, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.book.tick(self.now))
        for claim in self.live():
            assert not claim.deadline.is_past(self.now)

    def live(self) -> list[Claim]:
        return [claim for request_id, claim in self.claims.items() if request_id not in self.ends]

    def live_on(self, lane: str) -> Claim | None:
        return next((claim for claim in self.live() if claim.lane == lane), None)

    @invariant()
    def at_most_one_live_request_per_lane(self) -> None:
        lanes = [claim.lane for claim in self.live()]
        assert len(lanes) == len(set(lanes))
        assert len(lanes) == self.book.num_live

    @invariant()
    def slots_and_queue_are_bounded_and_never_idle(self) -> None:
        assert self.book.num_occupied == len(self.working) <= NUM_SLOTS
        num_stopping = len([request_id for request_id in self.working if request_id in self.ends])
        num_waiting = len([claim for claim in self.live() if claim.id not in self.working])
        assert self.book.num_queued == num_waiting <= MAX_QUEUED + num_stopping
        assert not (self.book.num_queued and self.book.num_occupied < NUM_SLOTS)

    @invariant()
    def what_works_in_vain_was_told_to_stop(self) -> None:
        assert {request_id for request_id in self.working if request_id in self.ends} <= self.aborted

    def teardown(self) -> None:
        for request_id in self.claims:
            self.carry_out(self.book.end(request_id, CANCELLED))
        while self.working:
            self.carry_out(self.book.work_done(self.working.pop(), CANCELLED))
        assert set(self.ends) == set(self.claims)
        assert (self.book.num_live, self.book.num_queued, self.book.num_occupied) == (0, 0, 0)
        assert not self.book._entries
        assert self.book.next_deadline is None


BookMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBook = BookMachine.TestCase
