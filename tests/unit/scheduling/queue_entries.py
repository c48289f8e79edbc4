"""Claims with the fields that most tests do not care about."""

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.scheduling.queue_entry import QueueEntry

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
) -> QueueEntry:
    return QueueEntry(request_id, lane or request_id, session, sequence, trigger, deadline, arrived_at, ttft_deadline)
