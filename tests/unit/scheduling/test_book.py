import pytest

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Trigger
from completion_server.scheduling.book import (
    CANCELLED,
    DEADLINE,
    SUPERSEDED,
    Abort,
    Book,
    Claim,
    End,
    IllegalTransitionError,
    Start,
)

STOPPED = Outcome(FinishReason.STOP)


def claim(
    request_id: str,
    *,
    lane: str | None = None,
    session: str = "s",
    sequence: int = 0,
    trigger: Trigger = Trigger.AUTOMATIC,
    deadline: Deadline = NEVER,
) -> Claim:
    return Claim(request_id, lane or request_id, session, sequence, trigger, deadline)


def test_a_request_starts_when_a_slot_is_free_and_the_next_one_when_the_first_is_done() -> None:
    book = Book(num_slots=1, max_queued=10)
    assert book.submit(claim("a")) == [Start("a")]
    assert book.submit(claim("b")) == []
    assert book.work_done("a", STOPPED) == [End("a", STOPPED), Start("b")]
    assert book.work_done("b", STOPPED) == [End("b", STOPPED)]
    assert (book.num_live, book.num_occupied, book.num_queued) == (0, 0, 0)


def test_a_newer_request_takes_the_place_of_one_that_waits_at_no_cost() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(claim("busy"))
    book.submit(claim("old", lane="user", sequence=1))
    assert book.submit(claim("new", lane="user", sequence=2)) == [End("old", SUPERSEDED)]
    assert book.num_queued == 1


def test_a_newer_request_aborts_one_that_runs_and_waits_for_its_slot() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(claim("old", lane="user", sequence=1))
    assert book.submit(claim("new", lane="user", sequence=2)) == [End("old", SUPERSEDED), Abort("old")]
    assert book.num_occupied == 1  # the engine has not stopped yet
    assert book.work_done("old", CANCELLED) == [Start("new")]


def test_an_older_sequence_that_comes_late_never_unseats_a_newer_one() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(claim("new", lane="user", sequence=2))
    assert book.submit(claim("old", lane="user", sequence=1)) == [End("old", SUPERSEDED)]
    assert book.num_live == 1


def test_across_sessions_of_a_user_the_later_arrival_is_the_newer() -> None:
    book = Book(num_slots=2, max_queued=10)
    book.submit(claim("first", lane="user", session="x", sequence=9))
    assert End("first", SUPERSEDED) in book.submit(claim("second", lane="user", session="y", sequence=1))


def test_explicit_goes_before_automatic_before_prefetch() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(claim("busy"))
    for request_id, trigger in (("p", Trigger.PREFETCH), ("a", Trigger.AUTOMATIC), ("e", Trigger.EXPLICIT)):
        book.submit(claim(request_id, trigger=trigger))
    started = []
    done = "busy"
    for _ in range(3):
        action = book.work_done(done, STOPPED)[-1]
        assert isinstance(action, Start)
        started.append(done := action.id)
    assert started == ["e", "a", "p"]


def test_a_full_queue_sheds_the_newcomer_but_not_one_that_replaces_its_own() -> None:
    book = Book(num_slots=1, max_queued=1, retry_after_ms=70)
    book.submit(claim("busy"))
    book.submit(claim("waits", lane="user", sequence=1))
    shed = Outcome(FinishReason.SHED, ShedReason.OVERLOAD, 70)
    assert book.submit(claim("late")) == [End("late", shed)]
    assert book.submit(claim("newer", lane="user", sequence=2)) == [End("waits", SUPERSEDED)]


def test_a_full_server_serves_the_newer_request_of_a_user_whose_older_one_it_stops() -> None:
    book = Book(num_slots=1, max_queued=0)
    book.submit(claim("old", lane="user", sequence=1))
    assert book.submit(claim("new", lane="user", sequence=2)) == [End("old", SUPERSEDED), Abort("old")]
    assert book.work_done("old", CANCELLED) == [Start("new")]


def test_a_deadline_ends_what_waits_and_what_runs() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(claim("runs", deadline=Deadline(10.0)))
    book.submit(claim("waits", deadline=Deadline(5.0)))
    assert book.next_deadline == 5.0
    assert book.tick(4.9) == []
    assert book.tick(5.0) == [End("waits", DEADLINE)]
    assert book.tick(10.0) == [End("runs", DEADLINE), Abort("runs")]
    assert book.next_deadline is None


def test_the_deadline_of_an_ended_request_wakes_nobody() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(claim("a", deadline=Deadline(5.0)))
    book.work_done("a", STOPPED)
    assert book.next_deadline is None


def test_ending_twice_says_nothing_the_second_time() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(claim("a"))
    assert book.end("a", CANCELLED) == [End("a", CANCELLED), Abort("a")]
    assert book.end("a", CANCELLED) == []
    assert book.work_done("a", STOPPED) == []
    assert book.end("a", CANCELLED) == []


def test_events_that_no_request_can_have_are_errors() -> None:
    book = Book(num_slots=1, max_queued=10)
    book.submit(claim("a"))
    book.submit(claim("b"))
    with pytest.raises(IllegalTransitionError):
        book.submit(claim("a"))
    with pytest.raises(IllegalTransitionError):
        book.work_done("b", STOPPED)
    with pytest.raises(IllegalTransitionError):
        book.work_done("unknown", STOPPED)
