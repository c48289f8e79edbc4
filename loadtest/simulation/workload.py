"""The parameters of a simulated run and the results of its requests. Pure."""

from dataclasses import dataclass, field
from typing import Literal

from completion_server.core.outcome import FinishReason
from loadtest.simulation.editors import EditorModel, SimulatedRequest, requests_of_all
from loadtest.simulation.profiles import LARGE_MODEL, EngineProfile, measured_engine

_LEAD_S = 2.0
"""Simulated before the first request that counts, so that a queue exists by then."""
_TRAIL_S = 1.0
"""Simulated after the last request that counts, so that it competes with others."""


EngineName = Literal["slots", "steps", "measured"]


@dataclass(frozen=True, slots=True)
class Policy:
    """A scheduling policy to compare."""

    order: str = "earliest_deadline"
    shed: str = "late"
    supersede: bool = True
    user_requests_per_s: float = 0.0
    """Sustained request rate that one user may have; 0 sets no limit."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic and the engine on which policies are compared."""

    load: float = 1.0
    """Requests offered, relative to the number that the slots can serve to the end."""
    num_slots: int = 8
    num_sessions: int | None = None
    """Open sessions; their users are away as much as the load requires. None: as many users as never rest."""
    seconds: float = 30.0
    budget_s: float = 0.250
    """Time to the first text after which an answer is worthless."""
    shed_budget_s: float | None = None
    """The scheduler's own, shed.budget_ms; None is `budget_s`."""
    hurried_s: float | None = None
    """Deadline of every second user's calls; None sets none."""
    look_s: float = 0.200
    """A completion must stand for this long before the user's next key to be seen."""
    engine: EngineName = "slots"
    """With "steps", the work of one step delays its whole batch, as in a real engine. "measured" is a real engine's
    step times, with an adaptive number of slots."""
    prefill_sigma: float = 0.0
    """Standard deviation of the logarithm of prefill times, with "slots"."""
    hangs_up: bool = False
    """Whether editors cancel at the next key. If not, their next request, a debounce later, supersedes the old one."""
    seed: int = 1
    editors: EditorModel = field(default_factory=EditorModel)

    @property
    def profile(self) -> EngineProfile:
        """The engine's times and the size of its requests."""
        return measured_engine() if self.engine == "measured" else LARGE_MODEL

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the engine can serve to the end."""
        return self.profile.capacity_per_s(self.num_slots)

    def budget_s_of(self, request: SimulatedRequest) -> float:
        """Return the time to first text that the request may take."""
        deadline_s = self.deadline_s_of(request)
        return self.budget_s if deadline_s is None else min(self.budget_s, deadline_s)

    def deadline_s_of(self, request: SimulatedRequest) -> float | None:
        """Return the deadline of the editor's call, in seconds from the request; None if it has none."""
        return self.hurried_s if request.user % 2 else None

    def counts(self, request: SimulatedRequest) -> bool:
        """Return whether a request counts in the figures."""
        return _LEAD_S <= request.at < _LEAD_S + self.seconds

    def requests(self) -> list[SimulatedRequest]:
        """Return the requests of all users, the same for every policy.

        Raises:
            ValueError: the sessions are too few for the load.

        """
        offered_per_s = self.load * self.capacity_per_s
        editors = self.editors
        num_users = self.num_sessions
        if num_users is None:
            num_users = max(1, round(offered_per_s / editors.requests_per_s))
        else:
            editors = editors.resting(offered_per_s / num_users)
        return requests_of_all(num_users, editors, _LEAD_S + self.seconds + _TRAIL_S, self.seed)


@dataclass(frozen=True, slots=True)
class SimulatedResult:
    """The result of a request. Times are in seconds from the run's start."""

    request: SimulatedRequest
    reason: FinishReason
    started_at: float | None
    first_text_at: float | None
    ended_at: float

    @property
    def ttft_s(self) -> float | None:
        """Time from the request to its first text."""
        return None if self.first_text_at is None else self.first_text_at - self.request.at

    @property
    def slot_s(self) -> float:
        """Time for which the request held a slot."""
        return 0.0 if self.started_at is None else self.ended_at - self.started_at
