"""Queue entries with the fields that most tests do not care about, and a book whose slots they take."""

from collections.abc import Hashable

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.scheduling.actions import Start
from completion_server.scheduling.book import Book
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import Continuation
from completion_server.scheduling.shedding import Shedding

STOPPED = Outcome(FinishReason.STOP)


def entry(
    request_id: str,
    *,
    lane: str | None = None,
    session: str = "s",
    sequence: int = 0,
    trigger: Trigger = Trigger.AUTOMATIC,
    deadline: Deadline = NEVER,
    arrived_at: float = 0.0,
    ttft_deadline: float = float("inf"),
    prefix: str | None = None,
    answer_key: Hashable | None = None,
    stamp: int = 0,
) -> QueueEntry:
    """Return an entry; without a `prefix` nothing reattaches to it, without an `answer_key` nothing joins it."""
    return QueueEntry(
        request_id,
        lane or request_id,
        session,
        sequence,
        trigger,
        deadline,
        arrived_at,
        ttft_deadline,
        continuation=None if prefix is None else Continuation(prefix, max_tokens=100),
        answer_key=answer_key,
        stamp=stamp,
    )


def busy_book(num_slots: int = 1, max_queued: int = 10, shedding: Shedding = Shedding.LATE) -> Book:
    """Return a book whose slots are all taken, by requests that have their first token."""
    book = Book(num_slots, max_queued, shedding=shedding)
    for number in range(num_slots):
        request_id = "busy" if num_slots == 1 else f"busy{number}"
        assert book.submit(entry(request_id), 0.0) == [Start(request_id)]
        book.first_token(request_id, 0.0)
    return book
