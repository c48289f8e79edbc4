"""Live requests with the fields that most tests do not care about, and a book whose slots they take."""

from collections.abc import Hashable

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.engine.interface import Output
from completion_server.requests.scheduling.reattach import Continuation
from completion_server.requests.scheduling.shedding import Shedding
from tests.support.recorded_book import Action, RecordedBook, RecordedRequest, Report, Start, Text

STOPPED = Outcome(FinishReason.STOP)


def live(
    request_id: str,
    *,
    lane: str | None = None,
    session: str = "s",
    sequence: int = 0,
    trigger: Trigger = Trigger.AUTOMATIC,
    deadline: Deadline = NEVER,
    arrived_at: float = 0.0,
    ttft_deadline: float = float("inf"),
    num_new_tokens: int = 0,
    prefix: str | None = None,
    answer_key: Hashable | None = None,
    stamp: int = 0,
    owner: str = "",
    tenant: str = "",
    weight: float = 1.0,
) -> RecordedRequest:
    """Return a request; without a `prefix` nothing reattaches to it, without an `answer_key` nothing joins it."""
    return RecordedRequest(
        request_id,
        lane or request_id,
        session,
        sequence,
        trigger,
        deadline,
        arrived_at,
        ttft_deadline,
        num_new_tokens,
        continuation=None if prefix is None else Continuation(prefix, max_tokens=100),
        answer_key=answer_key,
        stamp=stamp,
        owner=owner,
        tenant=tenant,
        weight=weight,
    )


def generate(book: RecordedBook, generation_id: str, text: str, now: float, finish: str | None = None) -> list[Action]:
    """Have the engine generate a token; return the actions, without the texts that requests are given."""
    actions = book.output(generation_id, Output(text, 1, finish), now)
    return [action for action in actions if not isinstance(action, Text)]


def stop(book: RecordedBook, generation_id: str, outcome: Outcome | None, now: float) -> list[Action]:
    """Have a generation stop; return the actions, without the report of how long that took."""
    return [action for action in book.stopped(generation_id, outcome, now) if not isinstance(action, Report)]


def busy_book(num_slots: int = 1, max_queued: int = 10, shedding: Shedding = Shedding.LATE) -> RecordedBook:
    """Return a book whose slots are all taken, by requests that have their first token."""
    book = RecordedBook(num_slots, max_queued, shedding=shedding)
    for number in range(num_slots):
        request_id = "busy" if num_slots == 1 else f"busy{number}"
        assert book.submit(live(request_id), 0.0) == [Start(request_id)]
        assert generate(book, request_id, "", 0.0) == []
    return book
