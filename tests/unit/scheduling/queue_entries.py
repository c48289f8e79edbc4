"""Queue entries with the fields that most tests do not care about."""

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import Continuation

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
    stamp: int = 0,
) -> QueueEntry:
    """Return an entry; without a `prefix` nothing reattaches to it."""
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
        stamp=stamp,
    )
