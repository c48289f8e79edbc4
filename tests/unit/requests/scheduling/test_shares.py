"""Tenants and their users share the engine's tokens: who starts next, and who gives way in a full queue."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from completion_server.core.outcome import CANCELLED, FinishReason
from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from completion_server.requests.scheduling.fair_queue import FairQueue
from completion_server.requests.scheduling.limiter import ConcurrencyLimiter
from completion_server.requests.scheduling.queue import first_come
from completion_server.requests.scheduling.requests import Generation, LiveRequest
from completion_server.requests.scheduling.shedding import Shedding
from tests.support.recorded_book import Action, Finish, RecordedBook, Start
from tests.unit.requests.scheduling.live_requests import live, stop

EXPLICIT, AUTOMATIC, PREFETCH = Trigger


def ids(owner: str, numbers: range) -> str:
    return " ".join(f"{owner}{number}" for number in numbers)


def ask(book: RecordedBook, request_ids: str, num_tokens: int = 200, **fields: Any) -> list[Action]:
    """Submit requests, each of the owner that its id begins with."""
    fields = {"tenant": "t", "num_new_tokens": num_tokens} | fields
    return [action for each in request_ids.split() for action in book.submit(live(each, owner=each[0], **fields), 0.0)]


def started(actions: Sequence[Action]) -> list[str]:
    return [action.id for action in actions if isinstance(action, Start)]


def shed(actions: Sequence[Action]) -> list[str]:
    return [a.id for a in actions if isinstance(a, Finish) and a.outcome.reason is FinishReason.SHED]


def serve(
    book: RecordedBook, request_id: str, num_tokens: int = 200, num_generated: int = 0, num_cached: int = 0
) -> list[str]:
    """Have the engine compute a request with a slot; return the requests that start in its place."""
    book.prompt_ready(request_id, num_tokens, num_tokens, 0.0)
    book.output(request_id, Output("a", num_generated, "length", cached_prompt_tokens=num_cached), 0.0)
    return started(stop(book, request_id, None, 0.0))


def serve_in_turn(book: RecordedBook, request_id: str, num: int, num_tokens: int = 200) -> list[str]:
    """Serve the request with the only slot and those that start after it; return these."""
    found = [request_id]
    while len(found) <= num:
        found += serve(book, found[-1], num_tokens)
    return found[1:]


def blocked_book(num_slots: int = 1, max_queued: int = 1000) -> RecordedBook:
    """Return a book whose slots another tenant has taken, for "z0", "z1" and so on."""
    book = RecordedBook(num_slots, max_queued)
    assert len(started(ask(book, ids("z", range(num_slots)), 1, tenant="z"))) == num_slots
    return book


@pytest.mark.parametrize(("num_tokens", "order"), [
    (2000, "a0 b0 a1 b1 a2 b2"),
    (200, "a0 a1 a2 a3 a4 a5 b0 a6 b1"),  # six are 1200 tokens ahead, more than the 1024 of the tolerance
])  # fmt: skip
def test_an_owner_further_over_its_share_than_the_tolerance_waits_for_the_others(num_tokens: int, order: str) -> None:
    book, expected = blocked_book(), order.split()
    ask(book, ids("a", range(9)), num_tokens, trigger=EXPLICIT)
    ask(book, ids("b", range(9)), num_tokens)
    assert serve_in_turn(book, "z0", len(expected), num_tokens) == expected


def test_a_slot_is_not_kept_free_for_those_who_are_owed_it() -> None:
    book = RecordedBook(2, 10)
    assert started(ask(book, "a0 a1", 10000)) == ["a0", "a1"]
    ask(book, "b0")
    ask(book, "a2", 10000)
    assert serve(book, "a0", 10000) == ["b0"]
    assert serve(book, "a1", 10000) == ["a2"]


def test_twice_the_weight_is_twice_the_tokens_however_many_users_share_them() -> None:
    book, owners = blocked_book(), {"a": ("heavy", 2.0), "b": ("light", 1.0), "c": ("light", 1.0)}
    for owner, (tenant, weight) in owners.items():
        ask(book, ids(owner, range(60)), 1200, tenant=tenant, weight=weight)
    counts = Counter(each[0] for each in serve_in_turn(book, "z0", 60, 1200))
    assert counts["a"] == pytest.approx(40, abs=1)
    assert counts["b"] == pytest.approx(counts["c"], abs=1)


def test_a_new_weight_counts_from_the_next_request_on() -> None:
    book = blocked_book()
    ask(book, ids("a", range(40)), 1200, tenant="a", weight=1.0)
    ask(book, ids("b", range(40)), 1200, tenant="b")
    first = serve_in_turn(book, "z0", 20, 1200)
    assert Counter(each[0] for each in first) == {"a": 10, "b": 10}
    ask(book, "a40", 1200, tenant="a", weight=3.0)
    last = serve_in_turn(book, first[-1], 36, 1200)
    assert Counter(each[0] for each in last)["a"] == pytest.approx(27, abs=2)


def test_an_owner_who_was_idle_has_the_credit_of_the_tolerance_at_most() -> None:
    book = blocked_book()
    ask(book, "b0", 1200)
    ask(book, ids("a", range(20)), 1200)
    first = serve_in_turn(book, "z0", 12, 1200)
    ask(book, ids("b", range(1, 6)), 1200, trigger=EXPLICIT)
    last = serve_in_turn(book, first[-1], 6, 1200)
    assert [each[0] for each in last] == ["b", "b", "b", "a", "b", "a"], "and not five times"


def test_an_owner_who_asks_alone_owes_nothing_for_it() -> None:
    book = RecordedBook(1, 10)
    for number in range(50):
        assert started(ask(book, f"a{number}", 1200)) == [f"a{number}"]
        serve(book, f"a{number}", 1200)
    ask(book, "b0")
    ask(book, "a50", trigger=EXPLICIT)
    ask(book, "b1")
    assert serve_in_turn(book, "b0", 2) == ["a50", "b1"]


def test_what_an_owner_runs_alone_is_not_charged_to_a_newcomer() -> None:
    book = RecordedBook(8, 20)
    assert len(started(ask(book, ids("a", range(8))))) == 8
    ask(book, "b0", 1200)
    ask(book, "a8", trigger=EXPLICIT)
    ask(book, "b1")
    assert serve(book, "a0") == ["b0"]
    assert serve(book, "a1") == ["b1"]


def test_a_running_generation_counts_while_others_wait() -> None:
    book = blocked_book(num_slots=4)
    ask(book, ids("a", range(6)), 1, trigger=EXPLICIT)
    ask(book, "b0 c0 d0", 1)
    found = [each for number in range(4) for each in serve(book, f"z{number}", 1)]
    assert found == ["a0", "a1", "b0", "c0"]


def test_a_long_prompt_counts_from_the_start_and_is_corrected_at_the_end() -> None:
    book = blocked_book(num_slots=2)
    ask(book, ids("a", range(4)), 4000, trigger=EXPLICIT)
    ask(book, ids("b", range(4)))
    assert serve(book, "z0", 1) == ["a0"]
    assert serve(book, "z1", 1) == ["b0"]
    assert serve(book, "b0") == ["b1"]
    assert serve(book, "a0", 4000, num_cached=3980) == ["a1"], "nearly all of it was cached"


@pytest.mark.parametrize(("num_built", "then"), [(None, "a1"), (800, "a1"), (1200, "b0")])
def test_an_aborted_generation_costs_its_prompt_and_holds_its_owner_back_no_longer(
    num_built: int | None, then: str
) -> None:
    book = blocked_book(num_slots=2)
    ask(book, "a0", 10000, trigger=EXPLICIT)
    assert serve(book, "z0", 1) == ["a0"]
    if num_built is not None:
        book.prompt_ready("a0", num_built, num_built, 0.0)
    ask(book, "a1", trigger=EXPLICIT)
    ask(book, "b0")
    book.end("a0", CANCELLED, 0.0)
    assert serve(book, "z1", 1) == [then], "while it is stopping"


def busy_engine(first_token_s: float) -> RecordedBook:
    """Return a book with free slots, of an engine that computes the prompts of "a", who has had much, and of "b"."""
    book = RecordedBook(8, 10, limiter=ConcurrencyLimiter(8, 8, first_token_s=0.15, tolerance=8.0))
    book.latency.first_token.add(first_token_s)
    assert started(ask(book, "a0", 4000)) == ["a0"]
    assert started(ask(book, "b0")) == ["b0"]
    return book


def test_an_owner_over_its_share_leaves_the_engine_to_the_others_unless_it_has_time_to_spare() -> None:
    assert started(ask(busy_engine(first_token_s=0.01), "a1", trigger=EXPLICIT)) == ["a1"]
    book = busy_engine(first_token_s=0.1)
    assert started(ask(book, "a1", trigger=EXPLICIT)) == []
    assert started(ask(book, "b1")) == ["b1"]
    book.prompt_ready("b0", 200, 200, 0.0)
    assert started(book.output("b0", Output("a", 1), 0.0)) == []
    assert started(book.output("b1", Output("a", 1), 0.0)) == ["a1"], "when their prompts are computed"


def test_a_tenant_is_passed_over_whose_users_wait_for_each_other() -> None:
    book = blocked_book(num_slots=3)
    ask(book, "c0", 600, tenant="u")
    assert serve(book, "z0", 1) == ["c0"]
    assert serve(book, "c0", 600) == []
    assert started(ask(book, "a0", 4000, weight=100.0)) == ["a0"]
    ask(book, "b0", weight=100.0)
    assert serve(book, "z1", 1) == ["b0"]
    ask(book, "a1", weight=100.0, trigger=EXPLICIT)
    ask(book, "c1", tenant="u")
    assert serve(book, "z2", 1) == ["c1"]


def test_what_was_not_computed_is_not_charged() -> None:
    book = blocked_book()
    ask(book, "a0", 10000, trigger=EXPLICIT)
    ask(book, "a1", trigger=EXPLICIT)
    ask(book, "b0")
    assert serve(book, "z0", 1) == ["a0"]
    assert started(stop(book, "a0", None, 0.0)) == ["a1"], "its prompt did not fit"


def full_book() -> RecordedBook:
    """Return a book with a full queue, whose slots "a" and another tenant have."""
    book = blocked_book(num_slots=2, max_queued=3)
    ask(book, "a0", 4000)
    assert serve(book, "z0", 1) == ["a0"]
    ask(book, "a1 a2", trigger=EXPLICIT)
    ask(book, "b0")
    return book


def test_a_full_queue_sheds_the_last_request_of_the_owner_furthest_over_its_share() -> None:
    book = full_book()
    assert shed(ask(book, "c0", trigger=PREFETCH)) == ["a2"]
    assert shed(ask(book, "d0 d1 d2", tenant="u")) == ["a1", "c0", "b0"], "of the tenant that is over its share"
    assert shed(ask(book, "d3", tenant="u")) == ["d3"], "nobody who waits is over it"


def test_a_full_queue_refuses_the_owner_that_is_over_its_share() -> None:
    book = full_book()
    assert shed(ask(book, "a3", trigger=EXPLICIT)) == ["a3"], "as urgent as its own last"
    assert shed(ask(book, "b1", trigger=PREFETCH)) == ["a2"]
    ask(book, "a4", trigger=PREFETCH)
    assert shed(ask(book, "a5", trigger=EXPLICIT)) == ["a5"]


def test_a_full_queue_sheds_within_the_tenant_that_is_over_its_share() -> None:
    book = blocked_book(num_slots=3, max_queued=2)
    for number, owner in enumerate("ab"):
        ask(book, f"{owner}0", 800)
        assert serve(book, f"z{number}", 1) == [f"{owner}0"]
    ask(book, "d0", tenant="u", trigger=PREFETCH)
    ask(book, "a1")
    assert shed(ask(book, "b1")) == ["b1"], "and not the prefetch of another tenant"
    assert shed(ask(book, "b2", trigger=EXPLICIT)) == ["a1"]


def test_one_owners_long_queue_does_not_make_anothers_request_look_late() -> None:
    book = RecordedBook(1, 100, shedding=Shedding.PREDICTED)
    ask(book, "a")
    book.latency.held.add(0.1)
    ask(book, ids("a", range(20)), trigger=EXPLICIT)
    assert shed(ask(book, "b0", ttft_deadline=0.5)) == []
    assert shed(ask(book, "a20", ttft_deadline=0.5)) == ["a20"]


def begin(queue: FairQueue, request: LiveRequest) -> LiveRequest:
    """Let a request wait and start at once."""
    request.generation = Generation(request, None)
    queue.add(request)
    queue.start(request)
    return request


@pytest.mark.parametrize("num_tenants", [1, 10_000])
def test_the_accounts_of_idle_owners_are_forgotten_and_no_others(num_tenants: int) -> None:
    queue = FairQueue(first_come)
    queue.add(waits := live("waits", owner="waits"))
    runs = begin(queue, live("runs", owner="runs"))
    accounts = waits.account, runs.account
    for number in range(10_000):
        queue.settle(begin(queue, live(f"r{number}", owner=str(number), tenant=str(number % num_tenants))).generation)
        assert queue.num_accounts <= 4096
    queue.add(waits := live("w1", owner="waits"))
    queue.add(again := live("r1", owner="runs"))
    assert (waits.account, again.account) == accounts
