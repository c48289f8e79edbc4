"""The book grants slots, supersedes older requests and moves generations to newer ones."""

import pytest

from completion_server.core.events import GenerationDiverged
from completion_server.core.outcome import CANCELLED, SUPERSEDED, ShedReason
from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from completion_server.requests.scheduling.generations import IllegalTransitionError
from completion_server.requests.scheduling.lanes import Sequences
from completion_server.requests.scheduling.queue import ORDERS
from completion_server.requests.scheduling.shedding import Ticks
from tests.support.recorded_book import Abort, Finish, Reattach, RecordedBook, Report, Start, Text
from tests.unit.requests.scheduling.live_requests import STOPPED, busy_book, generate, live, stop


def test_a_request_starts_when_a_slot_is_free_and_the_next_one_when_the_first_is_done() -> None:
    book = RecordedBook(num_slots=1, max_queued=10)
    assert book.submit(live("a"), 0.0) == [Start("a")]
    assert book.submit(live("b"), 0.0) == []
    assert stop(book, "a", STOPPED, 1.0) == [Finish("a", STOPPED), Start("b")]
    assert stop(book, "b", STOPPED, 2.0) == [Finish("b", STOPPED)]
    assert (book.num_live, book.num_occupied, book.num_queued) == (0, 0, 0)


def test_a_newer_request_aborts_a_running_one_and_waits_for_its_slot() -> None:
    book = RecordedBook(num_slots=1, max_queued=10)
    book.submit(live("old", lane="user", sequence=1), 0.0)
    assert book.submit(live("new", lane="user", sequence=2), 0.0) == [Finish("old", SUPERSEDED), Abort("old")]
    assert book.num_occupied == 1  # the engine has not stopped yet
    assert stop(book, "old", CANCELLED, 1.0) == [Start("new")]


def test_an_older_sequence_that_arrives_late_does_not_supersede_another_session() -> None:
    book = RecordedBook(num_slots=1, max_queued=10)
    book.submit(live("x5", lane="user", session="x", sequence=5), 0.0)
    stop(book, "x5", STOPPED, 1.0)
    book.submit(live("y1", lane="user", session="y", sequence=1), 1.0)
    assert book.submit(live("x4", lane="user", session="x", sequence=4), 1.5) == [Finish("x4", SUPERSEDED)]
    assert Finish("y1", SUPERSEDED) in book.submit(live("x6", lane="user", session="x", sequence=6), 2.0)
    # After a while it is an editor that has begun anew.
    assert Finish("x6", SUPERSEDED) in book.submit(live("y2", lane="user", session="y", sequence=2), 3.0)
    assert Finish("y2", SUPERSEDED) in book.submit(live("x1", lane="user", session="x", sequence=1), 9.0)


def typed_along(num_slots: int = 1, **options: int) -> RecordedBook:
    """Return a book with a request "new" that has reattached to the generation of "old"."""
    book = RecordedBook(num_slots, options.pop("max_queued", 10))
    assert book.submit(live("old", lane="user", sequence=1, prefix="x"), 0.0) == [Start("old")]
    newer = live("new", lane="user", sequence=2, prefix="xa", **options)  # type: ignore[arg-type]
    assert book.submit(newer, 0.5) == [Reattach("new", "old"), Finish("old", SUPERSEDED)]
    return book


def test_a_reattach_moves_the_generation_with_its_slot() -> None:
    book = typed_along()
    assert (book.num_live, book.num_occupied, book.num_queued, book.readers("old")) == (1, 1, 0, ["new"])
    assert book.output("old", Output("abc", 1), 0.6) == [Text("new", "bc")]
    assert stop(book, "old", STOPPED, 1.0) == [Finish("new", STOPPED)]
    assert book.is_idle


def test_a_request_that_reattaches_has_the_text_after_the_typed_text_at_once() -> None:
    book = RecordedBook(num_slots=1, max_queued=10)
    book.submit(live("old", lane="user", sequence=1, prefix="x"), 0.0)
    book.output("old", Output("abc", 2), 0.4)
    newer = live("new", lane="user", sequence=2, prefix="xa")
    assert book.submit(newer, 0.5) == [Reattach("new", "old", 2, "bc"), Finish("old", SUPERSEDED)]
    assert newer.marks.first_output == 0.5


def test_a_typed_request_supersedes_a_waiting_prefetch_of_the_same_text() -> None:
    book = busy_book()
    book.submit(live("prefetch", lane="user", sequence=1, trigger=Trigger.PREFETCH, prefix="x"), 0.0)
    assert book.submit(live("typed", lane="user", sequence=2, prefix="x"), 0.5) == [Finish("prefetch", SUPERSEDED)]
    assert book.num_queued == 1


def test_a_request_whose_generation_diverged_waits_for_a_slot_of_its_own() -> None:
    book = typed_along()
    book.submit(live("asked", trigger=Trigger.EXPLICIT), 0.5)
    assert book.output("old", Output("q", 1), 1.0) == [Report(GenerationDiverged(1)), Abort("old")]
    assert book.readers("old") == []
    assert (book.num_live, book.num_occupied, book.num_queued) == (2, 1, 2)
    assert [each.marks.started for each in book.live_requests if each.id == "new"] == [None]
    assert stop(book, "old", None, 1.0) == [Start("asked")]
    assert stop(book, "asked", STOPPED, 2.0) == [Finish("asked", STOPPED), Start("new")]


def test_a_request_whose_generation_diverged_gets_a_free_slot_even_if_late() -> None:
    book = typed_along(max_queued=0, ttft_deadline=1)
    book.output("old", Output("q", 1), 2.0)
    assert book.tick(2.1) == []
    assert stop(book, "old", None, 2.2) == [Start("new")]


def test_a_request_whose_slot_another_took_is_shed_if_late() -> None:
    book = typed_along(ttft_deadline=1)
    book.output("old", Output("q", 1), 2.0)
    book.submit(live("asked", trigger=Trigger.EXPLICIT), 2.0)
    assert stop(book, "old", None, 2.2) == [Start("asked")]
    (finish,) = book.tick(2.3)
    assert isinstance(finish, Finish)
    assert (finish.id, finish.outcome.shed_reason) == ("new", ShedReason.DEADLINE_UNREACHABLE)


def test_only_a_requests_own_generation_is_a_sample_of_first_tokens() -> None:
    book = typed_along()
    generate(book, "old", "ab", 1.5)
    assert book.latency.first_token.mean == 0.0
    stop(book, "old", STOPPED, 2.0)
    book.submit(live("own"), 2.0)
    generate(book, "own", "a", 2.25)
    generate(book, "own", "a", 9.0)
    assert book.latency.first_token.mean == 0.25
    stop(book, "own", STOPPED, 3.0)
    assert book.latency.held.mean == 1.5  # of old and new together, and of own


def test_a_sample_of_first_tokens_counts_the_tokens_that_the_prefix_cache_did_not_have() -> None:
    book = RecordedBook(num_slots=1, max_queued=10)
    book.submit(live("a", num_new_tokens=30), 0.0)
    book.prompt_ready("a", 40, 20, 0.0)
    book.output("a", Output("x", 1, cached_prompt_tokens=32), 1.0)
    assert book.latency.first_token.median_size == 8


def test_only_waiting_requests_are_abandoned() -> None:
    book = busy_book()
    book.submit(live("a"), 0.0)
    stop(book, "busy", STOPPED, 1.0)
    book.end("a", CANCELLED, 1.5)
    assert book.latency.abandon_rate == 0


def test_requests_aborted_without_a_token_raise_the_first_token_estimate() -> None:
    book = RecordedBook(num_slots=1, max_queued=10)
    for number, (waited_s, known_s) in enumerate(((0.25, 0.25), (0.125, 0.25), (1.25, 0.75))):
        book.submit(live(f"r{number}"), float(number))
        book.end(f"r{number}", CANCELLED, number + waited_s)
        stop(book, f"r{number}", CANCELLED, number + waited_s)
        assert book.latency.first_token.mean == known_s
    book.submit(live("served"), 5.0)
    generate(book, "served", "a", 5.75)
    book.end("served", CANCELLED, 9.0)
    assert book.latency.first_token.mean == 0.75


def test_more_slots_take_effect_at_once_and_fewer_as_slots_become_free() -> None:
    book = busy_book(num_slots=2)
    for number in range(3):
        book.submit(live(f"r{number}"), 0.0)
    assert book.resize(3, 1.0) == [Start("r0")]
    assert book.resize(1, 2.0) == []
    assert stop(book, "busy0", STOPPED, 3.0) == [Finish("busy0", STOPPED)]
    assert stop(book, "busy1", STOPPED, 3.0) == [Finish("busy1", STOPPED)]
    assert stop(book, "r0", STOPPED, 3.0) == [Finish("r0", STOPPED), Start("r1")]


def test_illegal_events_are_errors() -> None:
    book = RecordedBook(num_slots=1, max_queued=10)
    book.submit(live("a"), 0.0)
    book.submit(live("b"), 0.0)
    with pytest.raises(IllegalTransitionError):
        book.submit(live("a"), 0.0)
    with pytest.raises(IllegalTransitionError):
        stop(book, "b", STOPPED, 0.0)
    with pytest.raises(IllegalTransitionError):
        stop(book, "unknown", STOPPED, 0.0)
    with pytest.raises(IllegalTransitionError):
        book.output("b", Output("a", 1), 0.0)
    book.end("a", CANCELLED, 0.0)
    with pytest.raises(IllegalTransitionError):  # its generation is still stopping
        book.submit(live("a"), 0.0)


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


IN_QUEUE = (
    live("old and patient", arrived_at=1.0, ttft_deadline=9.0),
    live("hurried", arrived_at=2.0, ttft_deadline=2.5),
    live("new", arrived_at=3.0, ttft_deadline=4.0),
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("first_come", ["old and patient", "hurried", "new"]),
        ("newest_first", ["new", "hurried", "old and patient"]),
        ("earliest_deadline", ["hurried", "new", "old and patient"]),
    ],
)
def test_each_order_serves_its_first_request(name: str, expected: list[str]) -> None:
    assert [each.id for each in sorted(IN_QUEUE, key=ORDERS[name])] == expected


@pytest.mark.parametrize(("text", "finish"), [("", "stop"), ("", "length"), ("a", "length")])
def test_a_generation_that_ends_without_untyped_text_is_of_no_use(text: str, finish: str) -> None:
    book = typed_along()
    assert book.output("old", Output(text, 1, finish), 1.0) == [Report(GenerationDiverged(1)), Abort("old")]


def test_a_request_reattaches_to_a_running_generation_rather_than_to_a_waiting_one() -> None:
    book = RecordedBook(num_slots=1, max_queued=10)
    book.submit(live("prefetch", lane="user", sequence=1, trigger=Trigger.PREFETCH, prefix="x"), 0.0)
    book.submit(live("typed", lane="user", sequence=2, prefix="x"), 0.0)  # reattaches
    book.submit(live("p2", lane="user", sequence=3, trigger=Trigger.PREFETCH, prefix="x"), 0.0)
    assert book.submit(live("new", lane="user", sequence=4, prefix="xa"), 0.0) == [
        Reattach("new", "prefetch"), Finish("typed", SUPERSEDED),
    ]  # fmt: skip
    assert (book.num_live, book.num_queued) == (2, 1)


def test_a_typed_request_reattaches_to_a_prefetch_and_supersedes_the_older_typed_one() -> None:
    book = RecordedBook(num_slots=2, max_queued=10)
    book.submit(live("prefetch", lane="user", sequence=1, trigger=Trigger.PREFETCH, prefix="x"), 0.0)
    book.submit(live("typed", lane="user", sequence=2), 0.0)
    newer = live("new", lane="user", sequence=3, prefix="xa")
    assert book.submit(newer, 0.5) == [
        Finish("typed", SUPERSEDED), Abort("typed"), Reattach("new", "prefetch"), Finish("prefetch", SUPERSEDED),
    ]  # fmt: skip
    assert (book.num_live, book.num_occupied) == (1, 2)
