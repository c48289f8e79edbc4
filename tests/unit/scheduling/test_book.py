"""The book grants slots, supersedes older requests and moves generations to newer ones."""

import pytest

from completion_server.core.clock import Deadline
from completion_server.core.request import Trigger
from completion_server.scheduling.actions import CANCELLED, DEADLINE, SUPERSEDED, Abort, Finish, Reattach, Start
from completion_server.scheduling.book import Book, IllegalTransitionError
from completion_server.scheduling.live.lanes import Sequences
from completion_server.scheduling.live.records import Ticks
from completion_server.scheduling.queue import Queue, newest_first
from tests.unit.scheduling.queue_entries import STOPPED, busy_book, entry


def test_a_request_starts_when_a_slot_is_free_and_the_next_one_when_the_first_is_done() -> None:
    book = Book(num_slots=1, max_queued=10)
    assert book.submit(entry("a"), 0.0) == [Start("a")]
    assert book.submit(entry("b"), 0.0) == []
    assert book.work_done("a", STOPPED, 1.0) == [Finish("a", STOPPED), Start("b")]
    assert book.work_done("b", STOPPED, 2.0) == [Finish("b", STOPPED)]
    assert (book.num_live, book.num_occupied, book.num_queued) == (0, 0, 0)


def test_a_newer_request_supersedes_a_waiting_one_at_no_cost() -> None:
    book = busy_book()
    book.submit(entry("old", lane="user", sequence=1), 0.0)
    assert book.submit(entry("new", lane="user", sequence=2), 0.0) == [Finish("old", SUPERSEDED)]
    assert book.num_queued == 1


def test_a_newer_request_aborts_a_running_one_and_waits_for_its_slot() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("old", lane="user", sequence=1), 0.0)
    assert book.submit(entry("new", lane="user", sequence=2), 0.0) == [Finish("old", SUPERSEDED), Abort("old")]
    assert book.num_occupied == 1  # the engine has not stopped yet
    assert book.work_done("old", CANCELLED, 1.0) == [Start("new")]


def test_an_older_sequence_that_arrives_late_is_superseded() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("new", lane="user", sequence=2), 0.0)
    assert book.submit(entry("old", lane="user", sequence=1), 0.0) == [Finish("old", SUPERSEDED)]
    assert book.submit(entry("old too", lane="user", sequence=1), 0.0, reattach_to="new") == [
        Finish("old too", SUPERSEDED)
    ]
    assert book.num_live == 1


def test_an_older_sequence_that_arrives_late_does_not_supersede_another_session() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("x5", lane="user", session="x", sequence=5), 0.0)
    book.work_done("x5", STOPPED, 1.0)
    book.submit(entry("y1", lane="user", session="y", sequence=1), 1.0)
    assert book.submit(entry("x4", lane="user", session="x", sequence=4), 1.5) == [Finish("x4", SUPERSEDED)]
    assert Finish("y1", SUPERSEDED) in book.submit(entry("x6", lane="user", session="x", sequence=6), 2.0)
    # After a while it is an editor that has begun anew.
    assert Finish("x6", SUPERSEDED) in book.submit(entry("y2", lane="user", session="y", sequence=2), 3.0)
    assert Finish("y2", SUPERSEDED) in book.submit(entry("x1", lane="user", session="x", sequence=1), 9.0)


def test_an_old_sequence_is_served_if_the_lane_is_free() -> None:
    book = Book(num_slots=1, max_queued=10)
    for request_id in ("first", "again"):
        book.submit(entry(request_id, lane="user", session="x", sequence=1), 0.0)
        assert book.work_done(request_id, STOPPED, 0.5) == [Finish(request_id, STOPPED)]


def test_across_sessions_of_a_user_the_later_arrival_is_the_newer() -> None:
    book = Book(num_slots=2, max_queued=10)
    book.submit(entry("first", lane="user", session="x", sequence=9), 0.0)
    assert Finish("first", SUPERSEDED) in book.submit(entry("second", lane="user", session="y", sequence=1), 0.0)


def test_a_prefetch_and_a_typed_request_do_not_supersede_each_other() -> None:
    book = Book(num_slots=4, max_queued=10)
    prefetch = Trigger.PREFETCH
    assert book.submit(entry("typed", lane="user", sequence=1), 0.0) == [Start("typed")]
    assert book.submit(entry("ahead", lane="user", sequence=2, trigger=prefetch), 0.0) == [Start("ahead")]
    assert book.submit(entry("further", lane="user", sequence=3, trigger=prefetch), 0.0) == [
        Finish("ahead", SUPERSEDED), Abort("ahead"), Start("further"),
    ]  # fmt: skip
    assert book.submit(entry("typed on", lane="user", sequence=4), 0.0)[0] == Finish("typed", SUPERSEDED)
    assert book.num_live == 2


def test_explicit_goes_before_automatic_before_prefetch() -> None:
    book = busy_book()
    for request_id, trigger in (("p", Trigger.PREFETCH), ("a", Trigger.AUTOMATIC), ("e", Trigger.EXPLICIT)):
        book.submit(entry(request_id, trigger=trigger), 0.0)
    started = []
    done = "busy"
    for _ in range(3):
        action = book.work_done(done, STOPPED, 1.0)[-1]
        assert isinstance(action, Start)
        started.append(done := action.id)
    assert started == ["e", "a", "p"]


def test_within_a_trigger_the_order_decides() -> None:
    for order, first in (({}, "hurried"), ({"order": newest_first}, "last")):
        book = Book(1, 10, **order)  # type: ignore[arg-type]
        book.submit(entry("busy"), 0.0)
        book.submit(entry("first", arrived_at=1.0, ttft_deadline=8.0), 1.0)
        book.submit(entry("hurried", arrived_at=2.0, ttft_deadline=5.0), 2.0)
        book.submit(entry("last", arrived_at=3.0, ttft_deadline=9.0), 3.0)
        assert book.work_done("busy", STOPPED, 4.0) == [Finish("busy", STOPPED), Start(first)]


def test_a_deadline_ends_waiting_and_running_requests() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("runs", deadline=Deadline(10.0)), 0.0)
    book.submit(entry("waits", deadline=Deadline(5.0)), 0.0)
    assert book.next_tick == 5.0
    assert book.tick(4.9) == []
    assert book.tick(5.0) == [Finish("waits", DEADLINE)]
    assert book.tick(10.0) == [Finish("runs", DEADLINE), Abort("runs")]
    assert book.next_tick is None


def test_the_deadline_of_an_ended_request_needs_no_tick() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("a", deadline=Deadline(5.0)), 0.0)
    book.work_done("a", STOPPED, 1.0)
    assert book.next_tick is None


def test_a_reattach_moves_the_generation_with_its_slot() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("old", lane="user", sequence=1), 0.0)
    newer = entry("new", lane="user", sequence=2)
    assert book.candidates(newer) == ["old"]
    assert book.submit(newer, 0.5, reattach_to="old") == [Reattach("new", "old"), Finish("old", SUPERSEDED)]
    assert (book.num_live, book.num_occupied, book.num_queued) == (1, 1, 0)
    assert book.work_done("new", STOPPED, 1.0) == [Finish("new", STOPPED)]
    assert book.num_occupied == 0


def test_a_typed_request_reattaches_to_a_prefetch_and_supersedes_the_older_typed_one() -> None:
    book = Book(num_slots=2, max_queued=10)
    book.submit(entry("prefetch", lane="user", sequence=1, trigger=Trigger.PREFETCH), 0.0)
    book.submit(entry("typed", lane="user", sequence=2), 0.0)
    newer = entry("new", lane="user", sequence=3)
    assert book.submit(newer, 0.5, reattach_to="prefetch") == [
        Reattach("new", "prefetch"), Finish("prefetch", SUPERSEDED), Finish("typed", SUPERSEDED), Abort("typed"),
    ]  # fmt: skip
    assert (book.num_live, book.num_occupied) == (1, 2)


def test_a_typed_request_supersedes_a_waiting_prefetch_of_the_same_text() -> None:
    book = busy_book()
    book.submit(entry("prefetch", lane="user", sequence=1, trigger=Trigger.PREFETCH), 0.0)
    assert book.submit(entry("typed", lane="user", sequence=2), 0.5, reattach_to="prefetch") == [
        Finish("prefetch", SUPERSEDED)
    ]
    assert book.num_queued == 1


def test_a_prefetch_reattaches_to_prefetches_only() -> None:
    book = Book(num_slots=2, max_queued=10)
    book.submit(entry("typed", lane="user", sequence=1), 0.0)
    newer = entry("new", lane="user", sequence=3, trigger=Trigger.PREFETCH)
    assert book.candidates(newer) == []
    book.submit(entry("prefetch", lane="user", sequence=2, trigger=Trigger.PREFETCH), 0.0)
    assert book.candidates(newer) == ["prefetch"]


def test_running_candidates_come_before_waiting_ones() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("prefetch", lane="user", sequence=1, trigger=Trigger.PREFETCH), 0.0)
    book.submit(entry("typed", lane="user", sequence=2), 0.0)
    assert book.candidates(entry("new", lane="user", sequence=3)) == ["prefetch", "typed"]


def test_a_request_whose_generation_diverged_waits_for_a_slot_of_its_own() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("old", lane="user", sequence=1), 0.0)
    book.submit(entry("new", lane="user", sequence=2), 0.0, reattach_to="old")
    book.submit(entry("asked", trigger=Trigger.EXPLICIT), 0.0)
    assert book.diverged("new", 1.0) == [Start("asked")]
    assert (book.num_live, book.num_occupied, book.num_queued) == (2, 1, 1)
    assert book.work_done("asked", STOPPED, 2.0) == [Finish("asked", STOPPED), Start("new")]


def test_a_request_whose_generation_diverged_gets_a_free_slot_even_if_late() -> None:
    book = Book(num_slots=1, max_queued=0)
    book.submit(entry("old", lane="user", sequence=1), 0.0)
    book.submit(entry("new", lane="user", sequence=2, ttft_deadline=1.0), 0.0, reattach_to="old")
    assert book.diverged("new", 2.0) == [Start("new")]


def test_only_a_requests_own_generation_is_a_sample_of_first_tokens() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("old", lane="user", sequence=1), 1.0)
    book.submit(entry("new", lane="user", sequence=2), 1.25, reattach_to="old")
    book.first_token("new", 1.5)
    assert book.latency.first_token.mean == 0.0
    book.diverged("new", 2.0)
    book.first_token("new", 2.25)
    book.first_token("new", 9.0)
    assert book.latency.first_token.mean == 0.25
    book.first_token("unknown", 9.0)
    book.work_done("new", STOPPED, 3.0)
    assert book.latency.held.mean == 1.0  # of old and new together, and of new alone


def test_requests_aborted_without_a_token_raise_the_first_token_estimate() -> None:
    book = Book(num_slots=1, max_queued=10)
    for number, (waited_s, known_s) in enumerate(((0.25, 0.25), (0.125, 0.25), (1.25, 0.75))):
        book.submit(entry(f"r{number}"), float(number))
        book.end(f"r{number}", CANCELLED, number + waited_s)
        book.work_done(f"r{number}", CANCELLED, number + waited_s)
        assert book.latency.first_token.mean == known_s
    book.submit(entry("served"), 5.0)
    book.first_token("served", 5.75)
    book.end("served", CANCELLED, 9.0)
    assert book.latency.first_token.mean == 0.75


def test_more_slots_take_effect_at_once_and_fewer_as_slots_become_free() -> None:
    book = busy_book(num_slots=2)
    for number in range(3):
        book.submit(entry(f"r{number}"), 0.0)
    assert book.resize(3, 1.0) == [Start("r0")]
    assert book.resize(1, 2.0) == []
    assert book.work_done("busy0", STOPPED, 3.0) == [Finish("busy0", STOPPED)]
    assert book.work_done("busy1", STOPPED, 3.0) == [Finish("busy1", STOPPED)]
    assert book.work_done("r0", STOPPED, 3.0) == [Finish("r0", STOPPED), Start("r1")]


def test_ending_a_request_twice_has_no_second_effect() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("a"), 0.0)
    assert book.end("a", CANCELLED, 0.0) == [Finish("a", CANCELLED), Abort("a")]
    assert book.end("a", CANCELLED, 0.0) == []
    assert book.work_done("a", STOPPED, 0.0) == []
    assert book.end("a", CANCELLED, 0.0) == []


def test_illegal_events_are_errors() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(entry("a"), 0.0)
    book.submit(entry("b"), 0.0)
    with pytest.raises(IllegalTransitionError):
        book.submit(entry("a"), 0.0)
    with pytest.raises(IllegalTransitionError):
        book.work_done("b", STOPPED, 0.0)
    with pytest.raises(IllegalTransitionError):
        book.work_done("unknown", STOPPED, 0.0)
    with pytest.raises(IllegalTransitionError):
        book.diverged("b", 0.0)
    book.end("a", CANCELLED, 0.0)
    with pytest.raises(IllegalTransitionError):
        book.diverged("a", 0.0)


def test_a_newer_stamp_of_another_replica_supersedes() -> None:
    book = Book(1, 10)
    book.submit(entry("runs", lane="user", stamp=3), 0.0)
    book.submit(entry("ahead", lane="user", trigger=Trigger.PREFETCH, stamp=5), 0.0)
    assert book.supersede("user", 3, 0.1) == book.supersede("another", 9, 0.1) == []
    assert book.supersede("user", 4, 0.1) == [Finish("runs", SUPERSEDED), Abort("runs")]
    assert book.supersede("user", 9, 0.1) == [Finish("ahead", SUPERSEDED)]


def test_a_long_queue_of_ended_requests_is_not_kept() -> None:
    queue = Queue()
    for number in range(5000):
        queue.add(f"r{number}", (0.0, number))
        if number:
            queue.remove(f"r{number - 1}")
    assert len(queue) == 1
    assert queue.num_kept < 200


def test_the_times_of_ended_requests_are_not_kept() -> None:
    ticks = Ticks(lambda request_id: request_id == "r4999")
    for number in range(5000):
        ticks.add(30.0 + number, f"r{number}", num_live=1)
    assert len(ticks) < 200
    assert ticks.next == 30.0 + 4999


def test_sequences_are_forgotten_after_a_while() -> None:
    sequences = Sequences()
    for number in range(10):
        sequences.note(f"s{number}", 1, float(number))
    assert len(sequences) == 5
