"""How requests share the engine."""

from dataclasses import dataclass
from typing import Annotated, Literal

from completion_server.core.checks import Between, require_bounds

OrderName = Literal["earliest_deadline", "first_come", "newest_first"]
ShedWhen = Literal["never", "late", "predicted"]


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """The `[scheduling]` section."""

    max_slots: Annotated[int, Between(1, 100_000)] = 32
    """Requests that may be in the engine, at most; the others wait here, where dropping them is free."""
    min_slots: Annotated[int, Between(1, 100_000)] = 2
    """The number of slots follows what the engine bears, down to this: a first token is to take three
    quarters of shed.budget_ms."""
    step_tolerance: Annotated[float, Between(0, 1000)] = 8.0
    """How many times longer than in an engine with little to do a step may take, before there are fewer slots; 0 always
    gives out max_slots."""
    max_queued: Annotated[int, Between(0, 1_000_000)] = 1024
    """Requests that may wait; beyond that the last of the least important is shed."""
    order: OrderName = "earliest_deadline"
    """Who of those who wait is served first, among requests of one trigger."""
    lane: Literal["user", "session"] = "user"
    """Within what only the newest request lives: all of a user's editors, or each of them."""
    supersede: bool = True
    """Whether a newer request ends the older ones of its lane; without it each lives until its caller cancels it."""
    typing_through: bool = True
    """Whether a generation goes on when the user types what it says."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        require_bounds(self)
        if 0 < self.step_tolerance <= 1:
            msg = f"step_tolerance: must be 0 or more than 1, got {self.step_tolerance:g}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class ShedSettings:
    """The `[shed]` section."""

    budget_ms: Annotated[float, Between(1, 3_600_000)] = 200.0
    """A first token later than this after a request's receipt is worth nothing; a call's own deadline may be sooner."""
    when: ShedWhen = "late"
    """When a request is given up: never, when it can't make its budget any more, or also on arrival if by prediction
    it won't."""
    lag_ms: Annotated[float, Between(0, 3_600_000)] = 100.0
    """When handling what came in takes the process longer than this, so that everybody gets late, automatic requests
    and prefetches are shed as they come; 0 never does."""
    as_status: bool = False
    """Whether a shed `Complete` call fails with RESOURCE_EXHAUSTED, as load balancers expect, instead of ending with an
    empty completion."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        require_bounds(self)
