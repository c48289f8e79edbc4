"""Books of several front ends on one engine: whose request starts, who rings whom, and what counts for shedding."""

import pytest

from completion_server.core.outcome import FinishReason, ShedReason
from completion_server.core.request import Trigger
from completion_server.scheduling.actions import CANCELLED, Abort, Action, Finish, Ring, Start
from completion_server.scheduling.book import Book
from completion_server.scheduling.neighbours import LOOK_S, OVER, PATIENCE_S, BoardNeighbours, Row
from loadtest.simulation.front_ends import MemoryBoard
from tests.unit.scheduling.live_requests import live, stop


class Fronts:
    """Books beside each other that tell the others after each event, as a runner has them do."""

    def __init__(self, num: int = 2, num_slots: int = 1, max_queued: int = 10) -> None:
        self.board = MemoryBoard(num)
        self.books = [
            Book(num_slots, max_queued, neighbours=BoardNeighbours(self.board.at(place))) for place in range(num)
        ]

    def submit(self, place: int, request_id: str, now: float = 0.0, **fields: object) -> list[Action]:
        return self.after(place, self.books[place].submit(live(request_id, **fields), now), now)  # type: ignore[arg-type]

    def stop(self, place: int, request_id: str, now: float = 0.0) -> list[Action]:
        actions = [each for each in stop(self.books[place], request_id, None, now) if not isinstance(each, Finish)]
        return self.after(place, actions, now)

    def look(self, place: int, now: float = 0.0) -> list[Action]:
        return self.after(place, self.books[place].look(now), now)

    def after(self, place: int, actions: list[Action], now: float) -> list[Action]:
        while more := self.books[place].publish(now):
            actions = actions + more
        return actions

    def row(self, place: int) -> Row:
        return Row._make(self.board.rows[place])


def test_front_ends_share_the_slots() -> None:
    fronts = Fronts(num_slots=2)
    assert fronts.submit(0, "a") == [Start("a")]
    assert fronts.submit(1, "b") == [Start("b")]
    assert fronts.submit(0, "c") == []
    assert [book.num_in_engine for book in fronts.books] == [2, 2]
    assert fronts.stop(1, "b") == [Ring(0)]
    assert fronts.look(0) == [Start("c")]


def test_a_free_slot_is_for_the_most_urgent_request_of_all() -> None:
    fronts = Fronts(num=3)
    assert fronts.submit(0, "a") == [Start("a")]
    assert fronts.submit(0, "later", ttft_deadline=5.0) == []
    assert fronts.submit(1, "sooner", ttft_deadline=4.0) == []
    assert fronts.submit(2, "last", trigger=Trigger.PREFETCH, ttft_deadline=1.0) == []
    assert fronts.stop(0, "a") == [Ring(1)]
    assert fronts.submit(2, "newcomer", ttft_deadline=4.5) == [Ring(1)]
    assert fronts.look(1) == [Start("sooner")]
    assert fronts.stop(1, "sooner") == [Ring(2)]
    assert fronts.look(2) == [Start("newcomer")]


def test_one_free_slot_is_left_to_each_front_end_that_goes_first() -> None:
    fronts = Fronts(num_slots=2)
    fronts.submit(0, "a")
    fronts.submit(0, "b")
    fronts.submit(0, "later", ttft_deadline=5.0)
    fronts.submit(1, "sooner", ttft_deadline=4.0)
    assert fronts.stop(0, "a") == [Ring(1)]
    assert fronts.stop(0, "b") == [Start("later")]
    assert fronts.look(1) == [Start("sooner")]


def test_a_front_end_that_does_not_answer_is_passed_over_until_it_writes_again() -> None:
    fronts = Fronts()
    fronts.submit(0, "a")
    fronts.submit(0, "later", ttft_deadline=5.0)
    fronts.submit(1, "sooner", ttft_deadline=4.0)
    book = fronts.books[0]
    assert fronts.stop(0, "a", now=1.0) == [Ring(1)]
    assert book.next_tick == pytest.approx(1.0 + PATIENCE_S)
    assert fronts.after(0, book.tick(1.01), 1.01) == []
    now = book.next_tick
    assert fronts.after(0, book.tick(now), now) == [Start("later")]
    fronts.submit(0, "next", now=now, ttft_deadline=5.0)
    assert fronts.stop(0, "later", now=2.0) == [Start("next")], "it still has not written"
    fronts.look(1, now=2.0)
    fronts.submit(0, "third", now=2.0, ttft_deadline=5.0)
    assert fronts.stop(0, "next", now=3.0) == [Ring(1)]


def test_a_lost_ring_is_made_good_by_the_next_look() -> None:
    fronts = Fronts()
    fronts.submit(0, "a")
    fronts.submit(1, "b", now=1.0)
    assert fronts.books[1].next_tick == 1.0 + LOOK_S
    assert fronts.stop(0, "a", now=1.01) == [Ring(1)]
    assert fronts.after(1, fronts.books[1].tick(1.0 + LOOK_S), 1.0 + LOOK_S) == [Start("b")]
    assert fronts.books[1].next_tick is None


def test_a_request_that_ends_lets_the_one_behind_it_in_another_front_end_start() -> None:
    fronts = Fronts()
    fronts.submit(0, "a")
    fronts.submit(0, "later", ttft_deadline=5.0)
    fronts.submit(1, "sooner", ttft_deadline=4.0)
    assert fronts.stop(0, "a") == [Ring(1)]
    actions = fronts.after(1, fronts.books[1].end("sooner", CANCELLED, 0.0), 0.0)
    assert actions == [Finish("sooner", CANCELLED), Ring(0)]
    assert fronts.look(0) == [Start("later")]


def test_the_slots_of_a_cleared_place_are_free() -> None:
    fronts = Fronts()
    fronts.submit(0, "a")
    fronts.submit(1, "b")
    fronts.board.rows[0] = list(Row())
    assert fronts.look(1) == [Start("b")]


def test_the_number_of_slots_is_the_mean_of_the_limits_by_what_is_taken() -> None:
    fronts = Fronts(num_slots=2)
    assert fronts.submit(0, "a") == [Start("a")]
    fronts.books[1].num_slots = 6
    for name in "bcd":
        assert fronts.submit(1, name) == [Start(name)]
    assert fronts.submit(1, "e") == [Start("e")], "(2 + 3 * 6) / 4 = 5"
    assert fronts.submit(0, "f") == []
    assert fronts.submit(1, "g") == []


def test_a_request_past_its_budget_gives_its_slot_to_one_of_another_front_end() -> None:
    fronts = Fronts()
    fronts.submit(0, "late", ttft_deadline=1.0)
    assert fronts.after(0, fronts.books[0].tick(1.0), 1.0) == [], "nobody waits"
    assert fronts.submit(1, "b", now=1.5) == [Ring(0)]
    finish, abort = fronts.look(0, now=1.5)
    assert isinstance(finish, Finish)
    assert finish.outcome.shed_reason is ShedReason.DEADLINE_UNREACHABLE
    assert abort == Abort("late")
    assert fronts.stop(0, "late", now=1.6) == [Ring(1)]
    assert fronts.look(1, now=1.6) == [Start("b")]


def test_only_one_of_two_late_requests_ends_for_one_that_waits() -> None:
    fronts = Fronts(num=3, num_slots=2)
    for place, name in enumerate("ab"):
        fronts.submit(place, name, ttft_deadline=1.0)
        fronts.after(place, fronts.books[place].tick(1.0), 1.0)
    assert fronts.submit(2, "c", now=1.5) == [Ring(0), Ring(1)]
    assert len(fronts.look(0, now=1.5)) == 2
    assert fronts.look(1, now=1.5) == []


def test_the_queue_is_bounded_for_all_and_each_has_its_part_of_it() -> None:
    fronts = Fronts(max_queued=4)
    fronts.submit(0, "a")
    for number in range(4):
        assert fronts.submit(0, f"p{number}", trigger=Trigger.PREFETCH) == []
    assert fronts.submit(1, "b") == []
    assert fronts.submit(1, "c") == []
    [finish] = fronts.submit(1, "d")
    assert isinstance(finish, Finish)
    assert finish.outcome.reason is FinishReason.SHED
    assert finish.outcome.shed_reason is ShedReason.OVERLOAD


def test_what_waits_elsewhere_counts_for_the_time_to_a_first_token() -> None:
    fronts = Fronts()
    book = fronts.books[1]
    for _ in range(20):
        book.latency.first_token.add(0.1, 100)
        book.latency.first_token.add(0.2, 200)
    fronts.submit(0, "a", num_new_tokens=100)
    fronts.submit(0, "b", num_new_tokens=200)
    fronts.look(1)
    assert book.first_token_s(10) == book.latency.first_token_after(310)


def test_a_newcomer_waits_behind_the_requests_of_other_front_ends() -> None:
    board = MemoryBoard(2)
    neighbours = BoardNeighbours(board.at(0))
    board.rows[1] = list(Row(1.0, num_waiting=6, num_explicit=1, num_automatic=2, head_class=1, head_order=5.0))
    neighbours.num_free(0, 1, 0.0)
    explicit, automatic, prefetch = (1.0 + trigger for trigger in Trigger)
    assert neighbours.num_ahead((explicit, 4.0)) == 0
    assert neighbours.num_ahead((explicit, 6.0)) == 1
    assert neighbours.num_ahead((automatic, 0.0)) == 3
    assert neighbours.num_ahead((prefetch, 0.0)) == 6


def test_a_request_over_its_share_goes_after_all_others() -> None:
    board = MemoryBoard(2)
    neighbours = BoardNeighbours(board.at(0))
    board.rows[1] = list(Row(1.0, num_waiting=1, head_class=3))
    neighbours.num_free(0, 1, 0.0)
    assert neighbours.go_first((OVER + 1, 0.0), 1, 0.0)
    board.rows[1] = list(Row(2.0, num_waiting=1, head_class=OVER + 1))
    neighbours.num_free(0, 1, 0.0)
    assert not neighbours.go_first((OVER + 3, 0.0), 1, 0.0), "among those over their share none waits for another"
    assert not neighbours.go_first((3, 0.0), 1, 0.0)


def test_front_ends_with_the_same_to_tell_do_not_ring_each_other_for_ever() -> None:
    fronts = Fronts()
    fronts.submit(0, "a")
    fronts.submit(0, "b")
    fronts.submit(1, "c")
    for _ in range(3):
        assert fronts.look(0) == []
        assert fronts.look(1) == []
