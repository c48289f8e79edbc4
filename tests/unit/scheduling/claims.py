"""Claims with the fields that most tests do not care about."""

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.outcome import FinishReason, Outcome
from completion_server.core.request import Trigger
from completion_server.scheduling.claim import Claim

STOPPED = Outcome(FinishReason.STOP)


def claim(
    request_id: str,
    *,
    lane: str | None = None,
    session: str = "s",
    sequence: int = 0,
    trigger: Trigger = Trigger.AUTOMATIC,
    deadline: Deadline = NEVER,
    arrived_at: float = 0.0,
    answer_by: float = float("inf"),
) -> Claim:
    return Claim(request_id, lane or request_id, session, sequence, trigger, deadline, arrived_at, answer_by)
