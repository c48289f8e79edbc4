"""Invariants of the books of several front ends on one engine, whose rings are late or lost and of which some die."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from completion_server.core.request import Trigger
from completion_server.scheduling.actions import Action, Ring
from completion_server.scheduling.book import Book
from completion_server.scheduling.neighbours import LOOK_S, PATIENCE_S, BoardNeighbours, Row
from completion_server.scheduling.queue import ORDERS
from completion_server.scheduling.shedding import Shedding
from loadtest.simulation.front_ends import MemoryBoard
from tests.property.book_driver import SECONDS, UNLIMITED
from tests.property.test_book_machine import BookMachine
from tests.support.examples import examples

_MAX_RINGS = 100
"""More than front ends ring until each has what it may have."""


class RacedBoard(MemoryBoard):
    """A board on which several front ends may be served before they see each other's rows."""

    def __init__(self, num_places: int) -> None:
        super().__init__(num_places)
        self.seen: list[list[float]] | None = None

    def others(self, place: int) -> list[tuple[int, Sequence[float]]]:
        rows = self.rows if self.seen is None else self.seen
        return [(each, tuple(row)) for each, row in enumerate(rows) if each != place and row[0]]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.seen = [list(row) for row in self.rows]
        yield
        self.seen = None


class FrontEnd(BookMachine):
    """A book beside others, and what is known of it."""

    def __init__(self, book: Book, now: float) -> None:
        super().__init__()
        self.book, self.now = book, now
        self.most_slots = book.num_slots
        self.rings: list[int] = []
        self.is_hung = False
        self.carry_out([])

    def carry_out(self, actions: list[Action]) -> None:
        super().carry_out([each for each in actions if not isinstance(each, Ring)])
        while actions := self.book.publish(self.now):
            self.rings += [each.place for each in actions if isinstance(each, Ring)]
            super().carry_out([each for each in actions if not isinstance(each, Ring)])

    def has_free_slot(self) -> bool:
        """A free slot may be for another front end."""
        return False

    def look(self) -> None:
        self.carry_out(self.book.look(self.now))


class BooksMachine(RuleBasedStateMachine):
    """Orders of events in several front ends, and what holds for all of them together."""

    @initialize(
        num=st.integers(2, 3),
        num_slots=st.integers(1, 3),
        max_queued=st.integers(0, 3) | st.just(UNLIMITED),
        order=st.sampled_from(sorted(ORDERS)),
        shedding=st.sampled_from(Shedding),
    )
    def open_books(self, num: int, num_slots: int, max_queued: int, order: str, shedding: Shedding) -> None:
        self.now, self.num_slots = 0.0, num_slots
        self.most_slots = num_slots
        self.max_queued, self.order, self.shedding = max_queued, ORDERS[order], shedding
        self.board = RacedBoard(num)
        self.fronts = [self.open(place) for place in range(num)]

    def open(self, place: int) -> FrontEnd:
        neighbours = BoardNeighbours(self.board.at(place))
        book = Book(
            self.num_slots, self.max_queued, order=self.order, shedding=self.shedding, neighbours=neighbours
        )  # fmt: skip
        return FrontEnd(book, self.now)

    @rule(
        data=st.data(),
        user=st.integers(0, 2),
        sequence=st.integers(0, 5),
        trigger=st.sampled_from(Trigger),
        budget_s=SECONDS,
        timeout_s=st.none() | SECONDS,
        prefix=st.sampled_from(["x", "xa", None, None]),
        num_at_once=st.integers(1, 3),
    )
    def submit(
        self,
        data: st.DataObject,
        user: int,
        sequence: int,
        trigger: Trigger,
        budget_s: float,
        timeout_s: float | None,
        prefix: str | None,
        num_at_once: int,
    ) -> None:
        """Several front ends may take a request in before they see each other's rows."""
        fronts = data.draw(st.permutations(self.awake))[:num_at_once]
        before = self.num_works
        with self.board.frozen():
            for front in fronts:
                front.submit(user, 0, sequence, trigger, budget_s, timeout_s, prefix, True)
        if self.num_works > max(before, self.num_slots):
            assert self.num_works <= self.most_slots + len(self.fronts) - 1, "more than one too many of each"

    @precondition(lambda self: any(front.live() for front in self.awake))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        front = data.draw(st.sampled_from([front for front in self.awake if front.live()]))
        front.cancel(data.draw(st.sampled_from([each.id for each in front.live()])))

    @precondition(lambda self: any(not work.is_over for front in self.awake for work in front.works.values()))
    @rule(data=st.data(), token=st.sampled_from("aab"), finish=st.sampled_from([None, None, "stop", "length"]))
    def text_is_generated(self, data: st.DataObject, token: str, finish: str | None) -> None:
        fronts = [front for front in self.awake if any(not work.is_over for work in front.works.values())]
        data.draw(st.sampled_from(fronts)).text_is_generated(data, token, finish)

    @precondition(lambda self: any(front.works for front in self.awake))
    @rule(data=st.data())
    def a_generation_stops(self, data: st.DataObject) -> None:
        front = data.draw(st.sampled_from([front for front in self.awake if front.works]))
        before = self.num_works
        front.a_generation_stops(data)
        assert self.num_works <= max(before, self.num_slots), "one too many started"

    @precondition(lambda self: any(front.rings for front in self.fronts))
    @rule(data=st.data(), is_lost=st.booleans())
    def a_ring_comes(self, data: st.DataObject, is_lost: bool) -> None:
        self.deliver(data.draw(st.sampled_from([front for front in self.fronts if front.rings])), is_lost=is_lost)

    def deliver(self, sender: FrontEnd, *, is_lost: bool = False) -> None:
        receiver = self.fronts[sender.rings.pop(0)]
        assert receiver is not sender
        if not is_lost and not receiver.is_hung:
            receiver.look()

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.021, 0.06, 0.3, 3.0]), are_late=st.booleans())
    def time_passes(self, seconds: float, are_late: bool) -> None:
        self.now += seconds
        for front in self.fronts:
            front.now = self.now
        if not are_late:
            self.tick()

    def tick(self) -> None:
        for front in self.awake:
            front.tick()

    @rule(num_slots=st.integers(1, 4))
    def resize(self, num_slots: int) -> None:
        self.num_slots, self.most_slots = num_slots, max(self.most_slots, num_slots)
        for front in self.awake:
            front.resize(num_slots)

    @precondition(lambda self: len(self.awake) > 1)
    @rule(data=st.data())
    def one_hangs(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.awake)).is_hung = True

    @precondition(lambda self: len(self.awake) < len(self.fronts))
    @rule()
    def they_go_on(self) -> None:
        for front in self.fronts:
            front.is_hung = False
            front.resize(self.num_slots)
            front.tick()

    @rule(data=st.data())
    def one_dies(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.fronts) - 1))
        self.board.rows[place] = list(Row())
        self.fronts[place] = self.open(place)

    @rule()
    def all_is_told(self) -> None:
        """Once the rings have come, and those that were lost were made good, no slot is free while a request waits."""
        for _ in range(2 * len(self.fronts)):
            self.now += LOOK_S + PATIENCE_S
            for front in self.fronts:
                front.now = self.now
            self.tick()
            for _ in range(_MAX_RINGS):
                senders = [front for front in self.fronts if front.rings]
                if not senders:
                    break
                self.deliver(senders[0])
            else:
                raise AssertionError("front ends ring each other for ever")
        num_slots = {front.book.num_slots for front in self.fronts}
        if len(num_slots) == 1:
            waits = any(front.book.num_queued for front in self.awake)
            assert not (waits and self.num_works < self.num_slots), "a slot is free while a request waits"

    @invariant()
    def each_book_is_sound(self) -> None:
        for front in getattr(self, "fronts", ()):
            front.at_most_one_live_request_per_lane()
            front.every_reader_has_the_text_after_what_its_user_typed()
            front.only_a_book_that_sheds_ends_requests_as_unreachable()
            front.the_next_tick_is_not_after_the_earliest_deadline()
            assert front.book.num_occupied == len(front.works)
            assert {request.id for request in front.live()} == set(front.waits_since) | front.reading

    @invariant()
    def the_rows_are_true(self) -> None:
        for place, front in enumerate(getattr(self, "fronts", ())):
            row = Row._make(self.board.rows[place])
            assert row.num_occupied == front.book.num_occupied
            assert row.num_waiting == front.book.num_queued
            assert (row.head_class > 0) == (front.book.num_queued > 0)

    @property
    def awake(self) -> list[FrontEnd]:
        return [front for front in self.fronts if not front.is_hung]

    @property
    def num_works(self) -> int:
        """Generations in the engine."""
        return sum(len(front.works) for front in self.fronts)

    def teardown(self) -> None:
        for front in getattr(self, "fronts", ()):
            front.teardown()


BooksMachine.TestCase.settings = settings(max_examples=examples(2), stateful_step_count=40)
TestBooks = BooksMachine.TestCase
