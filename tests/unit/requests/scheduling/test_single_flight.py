"""Requests of different lanes that ask for the same answer: the book gives them one slot."""

from dataclasses import replace

from completion_server.core.clock import Deadline
from completion_server.core.errors import CompletionError, Limit
from completion_server.core.events import GenerationDiverged
from completion_server.core.outcome import CANCELLED, DEADLINE, SUPERSEDED, FinishReason, Outcome, ShedReason, Usage
from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from tests.support.recorded_book import Abort, Finish, Join, Reattach, RecordedBook, Report, Start, Text
from tests.unit.requests.scheduling.live_requests import STOPPED, busy_book, generate, live, stop

EXPLICIT, PREFETCH = Trigger.EXPLICIT, Trigger.PREFETCH
FAILED = Outcome(FinishReason.ERROR, error=CompletionError("away"))


def overload(max_queued: int, retry_after_ms: int = 50) -> Outcome:
    limit = Limit("scheduling.max_queued", max_queued)
    return Outcome(FinishReason.SHED, ShedReason.OVERLOAD, retry_after_ms, limit=limit)


LATE = Outcome(FinishReason.SHED, ShedReason.DEADLINE_UNREACHABLE, 50)


def flight(*joined: str, num_slots: int = 1, max_queued: int = 10) -> RecordedBook:
    """Return a book with a running request "a" that others have joined."""
    book = RecordedBook(num_slots, max_queued)
    assert book.submit(live("a", prefix="x", answer_key="k"), 0.0) == [Start("a")]
    for each in joined:
        assert book.submit(live(each, prefix="x", answer_key="k"), 0.0) == [Join(each, "a")]
    return book


def counts(book: RecordedBook) -> tuple[int, int, int, int]:
    return book.num_live, book.num_queued, book.num_joined, book.num_occupied


def test_a_request_joins_a_running_one_with_the_same_answer_even_if_a_slot_is_free() -> None:
    book = flight("b", num_slots=3)
    assert counts(book) == (2, 0, 1, 1)
    assert book.submit(live("other", answer_key="another"), 0.0) == [Start("other")]
    assert book.submit(live("none"), 0.0) == [Start("none")]
    assert counts(book) == (4, 0, 1, 3)


def test_all_that_read_a_generation_end_with_it() -> None:
    for outcome in (STOPPED, FAILED):
        book = flight("b", "c")
        book.submit(live("waits"), 0.0)
        assert stop(book, "a", outcome, 1.0) == [
            Finish("a", outcome), Finish("b", outcome), Finish("c", outcome), Start("waits"),
        ]  # fmt: skip
        assert counts(book) == (1, 0, 0, 1)


def test_a_generation_that_another_request_needs_goes_on() -> None:
    book = flight("b", "c")
    assert book.end("a", CANCELLED, 0.5) == [Finish("a", CANCELLED)]
    assert counts(book) == (2, 0, 1, 1)
    assert book.submit(live("d", answer_key="k"), 0.5) == [Join("d", "a")]
    assert book.supersede("b", 1, 0.5) == [Finish("b", SUPERSEDED)]
    assert book.end("d", CANCELLED, 0.5) == [Finish("d", CANCELLED)]
    assert book.end("c", CANCELLED, 0.5) == [Finish("c", CANCELLED), Abort("a")]
    assert counts(book) == (0, 0, 0, 1)
    assert book.submit(live("e", answer_key="k"), 0.5) == []  # an aborted generation has no more text
    assert stop(book, "a", CANCELLED, 1.0) == [Start("e")]


def test_a_request_joins_a_waiting_one_and_reads_when_that_starts() -> None:
    book = busy_book()
    assert book.submit(live("a", answer_key="k"), 0.0) == []
    assert book.submit(live("b", answer_key="k"), 0.0) == []
    assert counts(book) == (3, 1, 1, 1)
    assert stop(book, "busy", STOPPED, 1.0) == [Finish("busy", STOPPED), Start("a"), Join("b", "a")]
    assert counts(book) == (2, 0, 1, 1)


def test_the_place_of_a_waiting_leader_goes_to_the_next() -> None:
    book = busy_book()
    book.submit(live("a", answer_key="k", ttft_deadline=5.0), 0.0)
    book.submit(live("z", ttft_deadline=6.0), 0.0)
    book.submit(live("c", answer_key="k", ttft_deadline=8.0), 0.0)
    book.submit(live("b", answer_key="k", ttft_deadline=7.0), 0.0)
    assert book.end("a", CANCELLED, 0.5) == [Finish("a", CANCELLED)]
    assert counts(book) == (4, 2, 1, 1)
    assert stop(book, "busy", STOPPED, 1.0)[1:] == [Start("z")]
    assert stop(book, "z", STOPPED, 1.0)[1:] == [Start("b"), Join("c", "b")]


def test_a_more_urgent_request_leads_in_the_place_of_a_waiting_one() -> None:
    book = busy_book()
    book.submit(live("a", answer_key="k"), 0.0)
    book.submit(live("z", trigger=EXPLICIT, ttft_deadline=9.0), 0.0)
    assert book.submit(live("b", answer_key="k", trigger=EXPLICIT, ttft_deadline=8.0), 0.0) == []
    assert counts(book) == (4, 2, 1, 1)
    assert stop(book, "busy", STOPPED, 1.0)[1:] == [Start("b"), Join("a", "b")]
    assert stop(book, "b", STOPPED, 1.0) == [Finish("b", STOPPED), Finish("a", STOPPED), Start("z")]


def test_an_unreachable_leader_gives_its_place_to_one_that_has_time() -> None:
    book = busy_book()
    book.latency.first_token.add(0.1)
    book.submit(live("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(live("b", answer_key="k", ttft_deadline=2.0), 0.5)
    assert book.tick(0.9) == [Finish("a", LATE)]
    assert (counts(book), book.next_tick) == ((2, 1, 0, 1), 1.9)
    assert book.tick(1.9) == [Finish("b", LATE)]


def test_a_joined_request_ends_at_its_own_deadline() -> None:
    book = flight()
    book.submit(live("b", answer_key="k", deadline=Deadline(2.0)), 0.0)
    assert book.next_tick == 1.8, "the last call, for an answer that has text"
    assert book.tick(1.8) == []
    assert book.next_tick == 2.0
    assert book.tick(2.0) == [Finish("b", DEADLINE)]


def test_a_leader_past_its_budget_hands_over_and_only_the_last_frees_the_slot() -> None:
    book = RecordedBook(1, 10)
    book.submit(live("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(live("b", answer_key="k", ttft_deadline=2.0), 0.0)
    assert book.tick(1.0) == []  # no other waits
    assert book.submit(live("waits"), 1.5) == [Finish("a", LATE)]
    assert book.next_tick == 2.0
    assert book.tick(2.0) == [Finish("b", LATE), Abort("a")]
    assert stop(book, "a", CANCELLED, 2.5) == [Start("waits")]


def test_a_slot_that_was_handed_over_is_not_counted_as_reclaimed() -> None:
    book = RecordedBook(2, 10)
    book.submit(live("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(live("c", ttft_deadline=1.0), 0.0)
    book.submit(live("b", answer_key="k", ttft_deadline=3.0), 0.0)
    assert book.tick(1.0) == []
    assert book.submit(live("waits"), 1.5) == [
        Finish("a", LATE), Finish("c", LATE), Abort("c"),
    ]  # fmt: skip


def test_a_late_request_has_the_text_so_far_at_once() -> None:
    book = flight("b")
    generate(book, "a", "ab", 0.5)
    late = live("c", answer_key="k")
    assert book.submit(late, 0.6) == [Join("c", "a", 1, "ab")]
    assert book.output("a", Output("c", 1), 0.7) == [Text("b", "c"), Text("c", "c"), Text("a", "c")]
    assert (late.marks.started, late.marks.first_output, late.marks.last_output) == (0.6, 0.6, 0.7)


def test_only_the_last_answer_that_is_complete_stops_the_generation() -> None:
    book = flight("b", "c")
    generate(book, "a", "a", 0.5)
    assert book.end("a", STOPPED, 0.5) == [Finish("a", STOPPED)]
    assert book.end("b", STOPPED, 0.5) == [Finish("b", STOPPED)]
    assert book.end("c", STOPPED, 0.5) == [Finish("c", STOPPED), Abort("a")]
    assert book.submit(live("d", answer_key="k"), 0.5) == []
    assert stop(book, "a", None, 0.6) == [Start("d")]


def test_the_request_that_leads_counts_the_tokens() -> None:
    book = flight("b", "c")
    book.prompt_ready("a", 3, 3, 0.1)
    generate(book, "a", "a", 0.5)
    usages = {each.id: each.usage for each in book.end("a", CANCELLED, 0.6) if isinstance(each, Finish)}
    usages |= {each.id: each.usage for each in stop(book, "a", STOPPED, 0.7) if isinstance(each, Finish)}
    whole = Usage(prompt_tokens=3, completion_tokens=1)
    assert usages == {"a": replace(whole, is_shared=True), "b": whole, "c": replace(whole, is_shared=True)}


def test_the_others_read_on_if_the_leader_types_along() -> None:
    book = flight("b")
    newer = live("a2", lane="a", sequence=1, prefix="xa", answer_key="k2")
    assert book.submit(newer, 0.5) == [Reattach("a2", "a"), Finish("a", SUPERSEDED)]
    assert (counts(book), book.readers("a")) == ((2, 0, 1, 1), ["b", "a2"])
    assert book.submit(live("c", answer_key="k"), 0.5) == [Join("c", "a")]
    assert book.submit(live("d", answer_key="k2"), 0.5) == []  # that generation began before the typed text
    assert book.output("a", Output("ab", 1), 0.6) == [Text("b", "ab"), Text("c", "ab"), Text("a2", "b")]
    assert book.end("a2", STOPPED, 0.6) == [Finish("a2", STOPPED)]


def test_a_leader_that_diverged_leaves_the_generation_to_the_others() -> None:
    book = flight("b")
    book.submit(live("a2", lane="a", sequence=1, prefix="xa", answer_key="k2"), 0.5)
    assert generate(book, "a", "q", 0.6) == [Report(GenerationDiverged(0))]
    assert (counts(book), book.readers("a")) == ((2, 1, 0, 1), ["b"])
    assert book.submit(live("c", answer_key="k2"), 0.7) == []
    assert stop(book, "a", STOPPED, 1.0) == [Finish("b", STOPPED), Start("a2"), Join("c", "a2")]


def test_only_the_request_with_the_slot_is_a_sample_of_first_tokens() -> None:
    book = RecordedBook(1, 10)
    for request_id in "abc":
        book.submit(live(request_id, answer_key="k"), 1.0)
    book.end("a", CANCELLED, 2.0)
    book.end("b", CANCELLED, 2.0)
    generate(book, "a", "a", 3.0)
    assert book.latency.first_token.mean == 2.0  # since the start of the generation
    book.submit(live("late", answer_key="k"), 3.5)
    assert book.latency.first_token.mean == 2.0
    stop(book, "a", STOPPED, 4.0)
    assert book.latency.held.mean == 3.0


def test_a_request_that_was_overtaken_in_the_queue_is_not_shed_for_lack_of_time() -> None:
    book = busy_book()
    book.submit(live("a", answer_key="k", ttft_deadline=1.0), 0.0)
    book.submit(live("b", answer_key="k", trigger=EXPLICIT, ttft_deadline=9.0), 0.0)
    assert book.tick(1.0) == []
    assert counts(book) == (3, 1, 1, 1)


def test_joined_requests_are_not_taken_for_waiting_ones() -> None:
    book = flight("b", "c", num_slots=3)
    book.submit(live("late", ttft_deadline=1.0), 0.0)
    book.submit(live("too late", ttft_deadline=1.0), 0.0)
    assert book.tick(1.0) == []
    assert book.submit(live("waits"), 1.5) == [Finish("late", LATE), Abort("late")]
    assert book.submit(live("d", answer_key="k"), 1.5) == [Join("d", "a")]
    assert book.submit(live("another"), 1.5) == [Finish("too late", LATE), Abort("too late")]


def test_joined_requests_count_as_waiting_ones() -> None:
    book = flight("b", "c", max_queued=2)
    assert book.submit(live("d", answer_key="k"), 0.0) == [Finish("d", overload(2))]
    assert book.submit(live("e"), 0.0) == [Finish("e", overload(2))]
    book.end("c", CANCELLED, 0.0)
    assert book.submit(live("e"), 0.0) == []
    assert book.submit(live("d", answer_key="k", trigger=EXPLICIT), 0.0) == [Finish("e", overload(2))]
    assert counts(book) == (3, 1, 1, 1)


def test_a_second_generation_of_the_same_answer_does_not_end_the_first_flight() -> None:
    book = flight("b", max_queued=1, num_slots=2)
    assert book.submit(live("c", answer_key="k"), 0.0) == [Start("c")]  # no room to join
    stop(book, "c", STOPPED, 0.5)
    book.end("b", CANCELLED, 0.5)
    assert book.submit(live("d", answer_key="k"), 0.5) == [Join("d", "a")]


def test_no_request_joins_a_generation_that_is_over() -> None:
    book = flight("b")
    generate(book, "a", "a", 0.4, "stop")
    assert book.submit(live("c", answer_key="k"), 0.5) == []
    assert book.submit(live("d", answer_key="k"), 0.5) == []
    assert counts(book) == (4, 1, 2, 1)
    assert book.end("a", CANCELLED, 0.6) == [Finish("a", CANCELLED)]
    assert stop(book, "a", FAILED, 1.0) == [Finish("b", FAILED), Start("c"), Join("d", "c")]
