"""Requests of different lanes that ask for the same answer: the book gives them one slot."""

import pytest

from completion_server.core.clock import Deadline
from completion_server.core.errors import CompletionError
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Trigger
from completion_server.scheduling.actions import (
    CANCELLED,
    DEADLINE,
    SUPERSEDED,
    Abort,
    Finish,
    HandOver,
    Join,
    Reattach,
    Start,
)
from completion_server.scheduling.book import Book, IllegalTransitionError
from completion_server.scheduling.live.flights import Flights
from completion_server.scheduling.live.records import LiveRequest
from completion_server.scheduling.queue import TriggerQueues, first_come, newest_first
from completion_server.scheduling.shedding import Shedding
from tests.unit.scheduling.queue_entries import STOPPED, busy_book, entry

EXPLICIT, PREFETCH = Trigger.EXPLICIT, Trigger.PREFETCH
FAILED = Outcome(FinishReason.ERROR, error=CompletionError("away"))
OVERLOAD = Outcome(FinishReason.SHED, ShedReason.OVERLOAD, 50)
LATE = Outcome(FinishReason.SHED, ShedReason.DEADLINE_UNREACHABLE, 50)


def flight(*joined: str, num_slots: int = 1, max_queued: int = 10) -> Book:
    """Return a book with a running request "a" that others have joined."""
    book = Book(num_slots, max_queued)
    assert book.submit(entry("a", answer_key="k"), 0.0) == [Start("a")]
    for each in joined:
        assert book.submit(entry(each, answer_key="k"), 0.0) == [Join(each, "a")]
    return book


def counts(book: Book) -> tuple[int, int, int, int]:
    return book.num_live, book.num_queued, book.num_joined, book.num_occupied


def test_a_request_joins_a_running_one_with_the_same_answer_even_if_a_slot_is_free() -> None:
    book = flight("b", num_slots=3)
    assert counts(book) == (2, 0, 1, 1)
    assert book.submit(entry("other", answer_key="another"), 0.0) == [Start("other")]
    assert book.submit(entry("none"), 0.0) == [Start("none")]
    assert counts(book) == (4, 0, 1, 3)


def test_all_that_read_a_generation_end_with_it() -> None:
    for outcome in (STOPPED, FAILED):
        book = flight("b", "c")
        book.submit(entry("waits"), 0.0)
        assert book.work_done("a", outcome, 1.0) == [
            Finish("a", outcome), Finish("b", outcome), Finish("c", outcome), Start("waits"),
        ]  # fmt: skip
        assert counts(book) == (1, 0, 0, 1)


def test_a_joined_request_ends_alone() -> None:
    book = flight("b", "c", "d", "e")
    assert book.end("b", CANCELLED, 0.5) == [Finish("b", CANCELLED)]
    assert book.supersede("c", 1, 0.5) == [Finish("c", SUPERSEDED)]
    assert book.answer(entry("d2", lane="d", sequence=1), STOPPED, 0.5) == [
        Finish("d", SUPERSEDED), Finish("d2", STOPPED),
    ]  # fmt: skip
    assert book.end("b", CANCELLED, 0.5) == []
    assert counts(book) == (2, 0, 1, 1)
    assert book.work_done("a", STOPPED, 1.0) == [Finish("a", STOPPED), Finish("e", STOPPED)]


def test_the_deadline_of_a_joined_request_ends_it() -> None:
    book = flight()
    book.submit(entry("b", answer_key="k", deadline=Deadline(2.0), ttft_deadline=1.0), 0.0)
    book.submit(entry("waits"), 0.0)
    assert book.next_tick == 2.0
    assert book.tick(1.5) == []  # it keeps no slot from others
    assert book.tick(2.0) == [Finish("b", DEADLINE)]


def test_a_generation_that_another_request_needs_goes_on() -> None:
    book = flight("b", "c")
    assert book.end("a", CANCELLED, 0.5) == [HandOver("b", "a"), Finish("a", CANCELLED)]
    assert counts(book) == (2, 0, 1, 1)
    assert book.submit(entry("d", answer_key="k"), 0.5) == [Join("d", "b")]
    assert book.supersede("b", 1, 0.5) == [HandOver("c", "b"), Finish("b", SUPERSEDED)]
    assert book.end("d", CANCELLED, 0.5) == [Finish("d", CANCELLED)]
    assert book.end("c", CANCELLED, 0.5) == [Finish("c", CANCELLED), Abort("c")]
    assert counts(book) == (0, 0, 0, 1)
    assert book.submit(entry("e", answer_key="k"), 0.5) == []  # an aborted generation has no more text
    assert book.work_done("c", CANCELLED, 1.0) == [Start("e")]


def test_the_slot_goes_to_the_most_urgent_of_those_that_have_joined() -> None:
    book = flight("b")
    book.submit(entry("c", answer_key="k", trigger=EXPLICIT, ttft_deadline=9.0), 0.0)
    book.submit(entry("d", answer_key="k", trigger=EXPLICIT, ttft_deadline=8.0), 0.0)
    assert book.end("a", CANCELLED, 0.5)[0] == HandOver("d", "a")
    assert book.end("d", CANCELLED, 0.5)[0] == HandOver("c", "d")


def test_a_request_that_supersedes_the_leader_on_its_lane_joins_the_next_leader() -> None:
    book = flight("b")
    newer = entry("a2", lane="a", sequence=1, answer_key="k")
    assert book.submit(newer, 0.5) == [HandOver("b", "a"), Finish("a", SUPERSEDED), Join("a2", "b")]
    assert counts(book) == (2, 0, 1, 1)


def test_without_another_reader_a_request_on_the_same_lane_aborts_as_ever() -> None:
    book = flight()
    newer = entry("a2", lane="a", sequence=1, answer_key="k")
    assert book.submit(newer, 0.5) == [Finish("a", SUPERSEDED), Abort("a")]
    assert book.work_done("a", CANCELLED, 1.0) == [Start("a2")]


def test_a_request_joins_a_waiting_one_and_reads_when_that_starts() -> None:
    book = busy_book()
    assert book.submit(entry("a", answer_key="k"), 0.0) == []
    assert book.submit(entry("b", answer_key="k"), 0.0) == []
    assert counts(book) == (3, 1, 1, 1)
    assert book.work_done("busy", STOPPED, 1.0) == [Finish("busy", STOPPED), Start("a"), Join("b", "a")]
    assert counts(book) == (2, 0, 1, 1)


def test_the_place_of_a_waiting_leader_goes_to_the_next() -> None:
    book = busy_book()
    book.submit(entry("a", answer_key="k", ttft_deadline=5.0), 0.0)
    book.submit(entry("z", ttft_deadline=6.0), 0.0)
    book.submit(entry("c", answer_key="k", ttft_deadline=8.0), 0.0)
    book.submit(entry("b", answer_key="k", ttft_deadline=7.0), 0.0)
    assert book.end("a", CANCELLED, 0.5) == [Finish("a", CANCELLED)]
    assert counts(book) == (4, 2, 1, 1)
    assert book.work_done("busy", STOPPED, 1.0)[1:] == [Start("z")]
    assert book.work_done("z", STOPPED, 1.0)[1:] == [Start("b"), Join("c", "b")]


def test_a_more_urgent_request_leads_in_the_place_of_a_waiting_one() -> None:
    book = busy_book()
    book.submit(entry("a", answer_key="k"), 0.0)
    book.submit(entry("z", trigger=EXPLICIT, ttft_deadline=9.0), 0.0)
    assert book.submit(entry("b", answer_key="k", trigger=EXPLICIT, ttft_deadline=8.0), 0.0) == []
    assert counts(book) == (4, 2, 1, 1)
    assert book.work_done("busy", STOPPED, 1.0)[1:] == [Start("b"), Join("a", "b")]
    assert book.work_done("b", STOPPED, 1.0) == [Finish("b", STOPPED), Finish("a", STOPPED), Start("z")]


def test_a_request_that_was_overtaken_in_the_queue_waits_again_if_the_other_leaves() -> None:
    book = busy_book()
    book.submit(entry("a", answer_key="k"), 0.0)
    book.submit(entry("b", answer_key="k", trigger=EXPLICIT), 0.0)
    assert book.end("b", CANCELLED, 0.5) == [Finish("b", CANCELLED)]
    assert counts(book) == (2, 1, 0, 1)
    assert book.work_done("busy", STOPPED, 1.0)[1:] == [Start("a")]


def test_a_request_that_was_overtaken_in_the_queue_is_not_shed_for_lack_of_time() -> None:
    book = busy_book()
    book.submit(entry("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(entry("b", answer_key="k", trigger=EXPLICIT, ttft_deadline=9.0), 0.0)
    assert book.tick(1.0) == []
    assert counts(book) == (3, 1, 1, 1)


def test_a_running_prefetch_answers_any_request() -> None:
    book = Book(1, 10, order=newest_first)
    book.submit(entry("p", answer_key="k", trigger=PREFETCH), 0.0)
    assert book.submit(entry("e", answer_key="k", trigger=EXPLICIT, arrived_at=1.0), 1.0) == [Join("e", "p")]


def test_an_unreachable_leader_gives_its_place_to_one_that_has_time() -> None:
    book = busy_book()
    book.latency.first_token.add(0.1)
    book.submit(entry("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(entry("b", answer_key="k", ttft_deadline=2.0), 0.5)
    assert book.tick(0.9) == [Finish("a", LATE)]
    assert (counts(book), book.next_tick) == ((2, 1, 0, 1), 1.9)
    assert book.tick(1.9) == [Finish("b", LATE)]


def test_a_free_slot_goes_to_the_next_leader_if_the_first_is_unreachable() -> None:
    book = busy_book()
    book.latency.first_token.add(0.1)
    book.submit(entry("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(entry("b", answer_key="k", ttft_deadline=2.0), 0.5)
    assert book.resize(2, 0.95) == [Finish("a", LATE), Start("b")]


def test_a_leader_past_its_budget_hands_over_and_only_the_last_frees_the_slot() -> None:
    book = Book(1, 10)
    book.submit(entry("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(entry("b", answer_key="k", ttft_deadline=2.0), 0.0)
    assert book.tick(1.0) == []  # no other waits
    assert book.submit(entry("waits"), 1.5) == [HandOver("b", "a"), Finish("a", LATE)]
    assert book.next_tick == 2.0
    assert book.tick(2.0) == [Finish("b", LATE), Abort("b")]
    assert book.work_done("b", CANCELLED, 2.5) == [Start("waits")]


def test_a_slot_that_was_handed_over_is_not_counted_as_reclaimed() -> None:
    book = Book(2, 10)
    book.submit(entry("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(entry("c", ttft_deadline=1.0), 0.0)
    book.submit(entry("b", answer_key="k", ttft_deadline=3.0), 0.0)
    assert book.tick(1.0) == []
    assert book.submit(entry("waits"), 1.5) == [
        HandOver("b", "a"), Finish("a", LATE), Finish("c", LATE), Abort("c"),
    ]  # fmt: skip


def test_joined_requests_are_not_taken_for_waiting_ones() -> None:
    book = flight("b", "c", num_slots=3)
    book.submit(entry("late", ttft_deadline=1.0), 0.0)
    book.submit(entry("too late", ttft_deadline=1.0), 0.0)
    assert book.tick(1.0) == []
    assert book.submit(entry("waits"), 1.5) == [Finish("late", LATE), Abort("late")]
    assert book.submit(entry("d", answer_key="k"), 1.5) == [Join("d", "a")]
    assert book.submit(entry("another"), 1.5) == [Finish("too late", LATE), Abort("too late")]


def test_joined_requests_count_as_waiting_ones() -> None:
    book = flight("b", "c", max_queued=2)
    assert book.submit(entry("d", answer_key="k"), 0.0) == [Finish("d", OVERLOAD)]
    assert book.submit(entry("e"), 0.0) == [Finish("e", OVERLOAD)]
    book.end("c", CANCELLED, 0.0)
    assert book.submit(entry("e"), 0.0) == []
    assert book.submit(entry("d", answer_key="k", trigger=EXPLICIT), 0.0) == [Finish("e", OVERLOAD)]
    assert counts(book) == (3, 1, 1, 1)


def test_a_second_generation_of_the_same_answer_does_not_end_the_first_flight() -> None:
    book = flight("b", max_queued=1, num_slots=2)
    assert book.submit(entry("c", answer_key="k"), 0.0) == [Start("c")]  # no room to join
    book.work_done("c", STOPPED, 0.5)
    book.end("b", CANCELLED, 0.5)
    assert book.submit(entry("d", answer_key="k"), 0.5) == [Join("d", "a")]


def test_no_request_joins_a_generation_that_is_over() -> None:
    book = flight("b")
    book.generation_over("a")
    book.generation_over("unknown")
    assert book.submit(entry("c", answer_key="k"), 0.5) == []
    assert book.submit(entry("d", answer_key="k"), 0.5) == []
    assert counts(book) == (4, 1, 2, 1)
    assert book.end("a", CANCELLED, 0.6) == [HandOver("b", "a"), Finish("a", CANCELLED)]
    assert book.work_done("b", FAILED, 1.0) == [Finish("b", FAILED), Start("c"), Join("d", "c")]


def test_the_others_read_on_if_the_leader_types_along() -> None:
    book = flight("b")
    newer = entry("a2", lane="a", sequence=1, answer_key="k2")
    assert book.submit(newer, 0.5, reattach_to="a") == [Reattach("a2", "a"), Finish("a", SUPERSEDED)]
    assert counts(book) == (2, 0, 1, 1)
    assert book.submit(entry("c", answer_key="k"), 0.5) == [Join("c", "a2")]
    assert book.submit(entry("d", answer_key="k2"), 0.5) == []  # that generation began before the typed text
    assert book.end("a2", STOPPED, 0.6) == [HandOver("b", "a2"), Finish("a2", STOPPED)]


def test_a_leader_that_diverged_leaves_the_generation_to_the_others() -> None:
    book = flight("b")
    book.submit(entry("a2", lane="a", sequence=1, answer_key="k2"), 0.5, reattach_to="a")
    assert book.diverged("a2", 0.6) == [HandOver("b", "a2")]
    assert counts(book) == (2, 1, 0, 1)
    assert book.submit(entry("c", answer_key="k2"), 0.7) == []
    assert book.work_done("b", STOPPED, 1.0) == [Finish("b", STOPPED), Start("a2"), Join("c", "a2")]


def test_a_request_that_diverged_joins_another_one_with_its_answer() -> None:
    book = Book(2, 10)
    book.submit(entry("old", lane="user"), 0.0)
    book.submit(entry("new", lane="user", sequence=1, answer_key="k"), 0.1, reattach_to="old")
    book.submit(entry("a", answer_key="k"), 0.2)
    assert book.diverged("new", 0.6) == [Join("new", "a")]
    assert counts(book) == (2, 0, 1, 1)


def test_a_joined_request_whose_user_types_along_is_read_on() -> None:
    book = flight("b")
    newer = entry("b2", lane="b", sequence=1)
    assert book.candidates(newer) == ["b"]
    assert book.submit(newer, 0.5, reattach_to="b") == [Reattach("b2", "b"), Finish("b", SUPERSEDED)]
    assert counts(book) == (2, 0, 1, 1)
    assert book.diverged("b2", 0.6) == []
    assert counts(book) == (2, 1, 0, 1)
    assert book.work_done("a", STOPPED, 1.0) == [Finish("a", STOPPED), Start("b2")]


def test_a_request_that_has_joined_a_waiting_one_is_superseded() -> None:
    book = busy_book()
    book.submit(entry("a", answer_key="k"), 0.0)
    book.submit(entry("b", answer_key="k"), 0.0)
    newer = entry("b2", lane="b", sequence=1)
    assert book.submit(newer, 0.5, reattach_to="b") == [Finish("b", SUPERSEDED)]
    assert counts(book) == (3, 2, 0, 1)


def test_a_newcomer_that_reattached_to_a_joined_prefetch_gets_the_slot_of_its_own_older_request() -> None:
    book = flight()
    book.submit(entry("p", lane="a", sequence=1, trigger=PREFETCH, answer_key="k"), 0.0)
    newer = entry("a2", lane="a", sequence=2)
    assert book.candidates(newer) == ["a", "p"]
    assert book.submit(newer, 0.5, reattach_to="p") == [
        Reattach("a2", "p"), Finish("p", SUPERSEDED), HandOver("a2", "a"), Finish("a", SUPERSEDED),
    ]  # fmt: skip
    assert counts(book) == (1, 0, 0, 1)
    assert book.work_done("a2", STOPPED, 1.0) == [Finish("a2", STOPPED)]


def test_only_the_request_with_the_slot_is_a_sample_of_first_tokens() -> None:
    book = Book(1, 10)
    book.submit(entry("a", answer_key="k"), 1.0)
    book.submit(entry("b", answer_key="k"), 2.0)
    book.first_token("b", 2.0)
    assert book.latency.first_token.mean == 0.0
    book.submit(entry("c", answer_key="k"), 2.0)
    book.end("a", CANCELLED, 2.0)
    book.end("b", CANCELLED, 2.0)
    book.first_token("c", 3.0)
    assert book.latency.first_token.mean == 2.0  # since the start of the generation
    book.work_done("c", STOPPED, 4.0)
    assert book.latency.held.mean == 3.0


def test_illegal_events_of_joined_requests_are_errors() -> None:
    book = flight("b")
    with pytest.raises(IllegalTransitionError):
        book.work_done("b", STOPPED, 0.0)
    book.end("b", CANCELLED, 0.0)
    with pytest.raises(IllegalTransitionError):
        book.diverged("b", 0.0)


def test_a_book_that_never_sheds_ends_joined_requests_at_their_deadline_only() -> None:
    book = Book(1, 10, shedding=Shedding.NEVER)
    book.submit(entry("a", answer_key="k"), 0.0)
    book.submit(entry("b", answer_key="k", deadline=Deadline(3.0)), 0.0)
    assert book.next_tick == 3.0


def test_flights_keep_nothing_of_ended_requests() -> None:
    flights = Flights(TriggerQueues(first_come), 10)
    records = [LiveRequest(entry(f"r{number}", answer_key=number % 2), 0.0) for number in range(6)]
    for record in records:
        flights.take_in(record, flights.find(record.entry.answer_key))
    assert (len(flights), flights.num_joined) == (6, 4)
    for record in records[1:]:
        flights.hand_over(record)
    assert (len(flights), flights.num_joined) == (1, 0)
    flights.leave(records[0])
    assert (len(flights), flights.find(0), flights.find(1)) == (0, None, None)
