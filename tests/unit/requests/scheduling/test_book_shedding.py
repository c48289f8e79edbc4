"""The book gives up the requests that a full queue has no room for or that would be answered too late."""

from completion_server.core.errors import Limit
from completion_server.core.outcome import CANCELLED, FinishReason, Outcome, ShedReason
from completion_server.core.request import Trigger
from completion_server.requests.scheduling.shedding import Shedding
from tests.support.recorded_book import Abort, Action, Finish, RecordedBook, Start
from tests.unit.requests.scheduling.live_requests import STOPPED, busy_book, generate, live, stop

LATE = Outcome(FinishReason.SHED, ShedReason.DEADLINE_UNREACHABLE, 50)


def overload(max_queued: int, retry_after_ms: int = 50) -> Outcome:
    limit = Limit("scheduling.max_queued", max_queued)
    return Outcome(FinishReason.SHED, ShedReason.OVERLOAD, retry_after_ms, limit=limit)


def shed_by(actions: list[Action]) -> list[str]:
    return [a.id for a in actions if isinstance(a, Finish) and a.outcome.reason is FinishReason.SHED]


def test_a_full_queue_sheds_the_last_of_the_lowest_class_for_a_higher_one() -> None:
    book = busy_book(max_queued=3)
    for request_id, trigger in (("a", Trigger.AUTOMATIC), ("p1", Trigger.PREFETCH), ("p2", Trigger.PREFETCH)):
        book.submit(live(request_id, trigger=trigger), 0.0)
    given_up = [shed_by(book.submit(live(f"e{i}", trigger=Trigger.EXPLICIT), 0.0)) for i in range(4)]
    assert given_up == [["p2"], ["p1"], ["a"], ["e3"]]
    assert shed_by(book.submit(live("a2"), 0.0)) == ["a2"]
    assert book.num_queued == 3


def test_a_displaced_request_gets_its_own_retry_time() -> None:
    book = busy_book(max_queued=3)
    book.latency.held.add(0.1)
    for number in range(3):
        book.submit(live(f"p{number}", trigger=Trigger.PREFETCH), 0.0)
    action = book.submit(live("e", trigger=Trigger.EXPLICIT), 0.0)[0]
    assert action == Finish("p2", overload(3, 400))


def test_a_waiting_request_is_shed_when_its_first_token_is_unreachable() -> None:
    book = busy_book()
    book.latency.first_token.add(0.1)
    book.submit(live("waits", ttft_deadline=1.0), 0.0)
    assert book.next_tick == 0.9
    assert book.tick(0.8999) == []
    assert book.tick(0.9) == [Finish("waits", LATE)]
    assert book.next_tick is None


def test_a_free_slot_skips_unreachable_requests() -> None:
    book = busy_book()
    book.latency.first_token.add(0.1)
    book.submit(live("unreachable", ttft_deadline=1.0), 0.0)
    book.submit(live("in time", ttft_deadline=2.0), 0.0)
    actions = stop(book, "busy", STOPPED, 0.95)
    assert shed_by(actions) == ["unreachable"]
    assert actions[-1] == Start("in time")


def test_a_request_past_its_budget_without_a_token_yields_its_slot() -> None:
    book = RecordedBook(1, 10)
    book.submit(live("slow", ttft_deadline=1.0), 0.0)
    book.submit(live("waits", ttft_deadline=5.0), 0.5)
    assert book.tick(1.0) == [Finish("slow", LATE), Abort("slow")]
    assert stop(book, "slow", CANCELLED, 1.5) == [Start("waits")]


def test_a_slot_is_kept_with_a_token_or_while_no_request_waits() -> None:
    alone = RecordedBook(1, 10)
    alone.submit(live("slow", ttft_deadline=1.0), 0.0)
    assert alone.tick(1.0) == []
    assert alone.next_tick is None
    book = busy_book()
    book.submit(live("waits", ttft_deadline=5.0), 0.0)
    assert book.tick(4.0) == []


def test_a_request_past_its_budget_yields_its_slot_to_the_next_newcomer() -> None:
    book = RecordedBook(2, 10)
    book.submit(live("slow", ttft_deadline=1.0), 0.0)
    book.submit(live("slower", ttft_deadline=1.1), 0.0)
    assert book.tick(1.5) == []
    assert book.submit(live("waits", ttft_deadline=5.0), 2.0) == [Finish("slow", LATE), Abort("slow")]
    assert book.submit(live("a user's", lane="u", sequence=1, ttft_deadline=5.0), 2.0) == [
        Finish("slower", LATE),
        Abort("slower"),
    ]
    assert book.submit(live("third", ttft_deadline=5.0), 2.0) == []
    assert stop(book, "slow", CANCELLED, 2.1) == [Start("waits")]


def test_a_slot_being_freed_counts_for_one_waiting_request() -> None:
    book = RecordedBook(2, 10)
    for request_id in ("slow", "slower"):
        book.submit(live(request_id, ttft_deadline=1.0), 0.0)
    book.tick(1.5)
    book.end("slow", CANCELLED, 1.6)
    assert book.submit(live("waits", ttft_deadline=5.0), 2.0) == []
    generate(book, "slower", "a", 2.1)
    assert book.submit(live("waits too", ttft_deadline=5.0), 2.2) == []


def test_a_newcomer_with_a_predicted_late_token_is_shed() -> None:
    for shedding in Shedding:
        book = busy_book(shedding=shedding)
        book.latency.held.add(1.0)  # a slot a second
        refused = shed_by(book.submit(live("r", ttft_deadline=0.9), 0.0))
        assert refused == (["r"] if shedding is Shedding.PREDICTED else [])
        assert shed_by(book.submit(live("patient", ttft_deadline=9.0), 0.0)) == []


def test_the_prediction_accounts_for_abandoned_requests() -> None:
    def refuses(*, abandon: bool) -> bool:
        book = RecordedBook(1, 100, shedding=Shedding.PREDICTED)
        book.submit(live("busy"), 0.0)
        book.latency.held.add(0.1)
        for number in range(50):
            book.submit(live(f"r{number}", ttft_deadline=0.9), 0.0)
        for number in range(40 if abandon else 0):
            book.submit(live(f"r{number} on", lane=f"r{number}", sequence=1, ttft_deadline=0.92), 0.02)
        return bool(shed_by(book.submit(live("newcomer", ttft_deadline=1.0), 0.05)))

    assert refuses(abandon=False)
    assert not refuses(abandon=True)


def test_the_prediction_counts_only_requests_served_before() -> None:
    book = busy_book(shedding=Shedding.PREDICTED)
    book.latency.held.add(1.0)
    for number in range(5):
        book.submit(live(f"r{number}", ttft_deadline=20.0), 0.0)
    assert shed_by(book.submit(live("hurried", ttft_deadline=3.0), 0.0)) == []
    assert shed_by(book.submit(live("as hurried", ttft_deadline=3.0), 0.0)) == ["as hurried"]
    assert shed_by(book.submit(live("asked", ttft_deadline=3.0, trigger=Trigger.EXPLICIT), 0.0)) == []


def test_the_retry_time_is_the_predicted_wait_within_bounds() -> None:
    for held_s, expected_ms in ((0.001, 50), (0.3, 300), (9.0, 1000)):
        book = RecordedBook(1, 0, max_retry_after_ms=1000)
        book.submit(live("busy"), 0.0)
        book.latency.held.add(held_s)
        action = book.submit(live("late"), 0.0)[0]
        assert isinstance(action, Finish)
        assert action.outcome.retry_after_ms == expected_ms


def test_a_request_that_has_its_token_keeps_its_slot_when_its_time_is_up() -> None:
    book = RecordedBook(1, 10)
    book.submit(live("runs", ttft_deadline=1.0), 0.0)
    generate(book, "runs", "a", 0.5)
    book.submit(live("waits"), 0.6)
    assert book.tick(1.0) == []


def test_the_first_token_of_a_newcomer_is_expected_behind_the_prompts_before_it() -> None:
    book = RecordedBook(num_slots=3, max_queued=8)
    for size, took_s in ((10, 0.02), (1000, 0.2)) * 5:
        book.latency.first_token.add(took_s, size)
    assert book.first_token_s(100) < book.first_token_s(1000)
    book.submit(live("a", num_new_tokens=1000), 0.0)
    assert book.first_token_s(100) == book.latency.first_token_after(1100)
    generate(book, "a", "a", 0.2)
    assert book.first_token_s(100) == book.latency.first_token_after(100)
