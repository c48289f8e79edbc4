"""Settings of scheduling and shedding."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from completion_server.core.checks import Between, require_bounds

OrderName = Literal["earliest_deadline", "first_come", "newest_first"]
ShedWhen = Literal["never", "late", "predicted"]


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """The `[scheduling]` section."""

    max_slots: Annotated[int, Between(1, 100_000)] = 32
    """Largest number of requests in the engine. Others wait in the server's queue, where dropping them is free."""
    step_tolerance: Annotated[float, Between(0, 1000)] = 8.0
    """Step time, in multiples of the step time of a lightly loaded engine, above which the number of slots is reduced;
    0 always gives max_slots."""
    max_queued: Annotated[int, Between(0, 1_000_000)] = 1024
    """Requests that may wait; beyond that the last request of the lowest class is shed."""
    order: OrderName = "earliest_deadline"
    """The order in which waiting requests of one trigger are served."""
    lane: Literal["user", "session"] = "user"
    """The unit that has one live request at a time: a user with all editors, or each editor session."""
    supersede: bool = True
    """Whether a newer request ends the older ones of its lane. If not, each lives until it ends or is cancelled."""
    typing_through: bool = True
    """Whether a newer request reattaches to a running generation if the user typed the generated text."""
    single_flight: bool = True
    """Whether one generation answers all live requests that ask for the same answer: the same text and options, greedy
    or with the same seed, of callers that share the prefix cache (engine.cache_scope)."""
    min_slots: ClassVar[int] = 2
    """Smallest number of slots. The server adapts their number to the engine's load, so that a first token takes at
    most three quarters of shed.budget_ms."""

    def __post_init__(self) -> None:
        """Check the bounds, and that `step_tolerance` is 0 or above 1."""
        require_bounds(self)
        if 0 < self.step_tolerance <= 1:
            msg = f"step_tolerance: must be 0 or more than 1, got {self.step_tolerance:g}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class ShedSettings:
    """The `[shed]` section."""

    budget_ms: Annotated[float, Between(1, 3_600_000)] = 200.0
    """Time from the receipt of a request after which a first token has no value; a call's deadline may be sooner."""
    when: ShedWhen = "late"
    """When a request is shed for lack of time: "never", "late" (its first token can't come in time any more), or
    "predicted" (also on arrival, if its first token is predicted to be late)."""
    lag_ms: Annotated[float, Between(0, 3_600_000)] = 100.0
    """Lateness of the event loop above which automatic requests and prefetches are shed on arrival; 0 never sheds."""
    as_status: bool = False
    """Whether a shed `Complete` call fails with RESOURCE_EXHAUSTED, as load balancers expect, instead of ending with an
    empty completion."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        require_bounds(self)
