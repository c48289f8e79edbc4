"""What scheduling needs to know of a request."""

from collections.abc import Hashable
from dataclasses import dataclass

from completion_server.core.clock import NEVER, Deadline
from completion_server.core.request import Trigger


@dataclass(frozen=True, slots=True)
class Claim:
    """A request's claim to a slot."""

    id: str
    lane: Hashable
    """Whom it belongs to: a newer claim on the same lane takes its place. Prefetches have a lane beside it."""
    session: str
    """Sequences are compared within a session; across sessions the later arrival is the newer."""
    sequence: int
    trigger: Trigger
    deadline: Deadline = NEVER
    """When it ends, whatever it has got."""
    arrived_at: float = 0.0
    """Clock seconds."""
    answer_by: float = float("inf")
    """Clock seconds by which the first token must be there, or the answer is worth nothing."""
    num_new_tokens: int = 0
    """Prompt tokens that the engine will have to compute, by the estimate made on arrival."""
