"""A request's way through the rooms: admission, scheduling, prompt, engine, streaming, and back out.

The rooms don't know each other; this module and `completion` beside it join them, and rpc sees only these two.
"""

import math

from completion_server.admission.fair_use import FairUse
from completion_server.admission.gate import Gate
from completion_server.admission.strain import Strain
from completion_server.completion import Completion, Prompts, Rooms
from completion_server.core.clock import Clock
from completion_server.core.events import Observer
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Request, Trigger
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.scheduling.claim import Claim
from completion_server.scheduling.runner import Runner
from completion_server.scheduling.settings import SchedulingSettings


class Pipeline:
    """Takes requests in."""

    def __init__(
        self,
        *,
        gate: Gate,
        fair_use: FairUse,
        runner: Runner,
        prompts: Prompts,
        engine: SupervisedEngine,
        clock: Clock,
        observer: Observer,
        scheduling: SchedulingSettings,
        budget_s: float,
        retry_after_ms: int = 1000,
        delta_pause_s: float = 0.0,
        strain: Strain | None = None,
    ) -> None:
        """Join the rooms. A first token later than `budget_s` after receipt is worth nothing."""
        self.gate = gate
        self.runner = runner
        self.engine = engine
        self.clock = clock
        self.observer = observer
        self._fair_use = fair_use
        self._rooms = Rooms(runner, prompts, engine, clock, observer, retry_after_ms, delta_pause_s)
        self._settings = scheduling
        self._budget_s = budget_s
        self._strain = strain or Strain(0.0, clock)
        self._retry_after_ms = retry_after_ms

    def open(self, request: Request) -> Completion:
        """Take a request in and return its answer, perhaps already ended.

        Raises:
            UnavailableError: the server can't serve now.

        """
        self.gate.check()
        completion = Completion(self._rooms, request, self._claim(request))
        now = completion.marks.admitted = self.clock.now()
        wait_s = self._fair_use.wait_s(_owner(request), now)
        if wait_s:
            completion.end(Outcome(FinishReason.SHED, ShedReason.RATE_LIMITED, math.ceil(wait_s * 1000)))
        elif request.trigger is not Trigger.EXPLICIT and self._strain.is_behind(now):
            self.runner.refuse_nowait(completion, Outcome(FinishReason.SHED, ShedReason.OVERLOAD, self._retry_after_ms))
        else:
            self.runner.submit_nowait(completion, takes_over=self._settings.typing_through)
        return completion

    def _claim(self, request: Request) -> Claim:
        owner = _owner(request)
        session = request.caller.session if self._settings.lane == "session" else ""
        return Claim(
            id=request.id,
            lane=(*owner, session) if self._settings.supersede else request.id,
            session=request.caller.session,
            sequence=request.sequence,
            trigger=request.trigger,
            deadline=request.deadline,
            arrived_at=request.received_at,
            answer_by=min(request.received_at + self._budget_s, request.deadline.at),
        )


def _owner(request: Request) -> tuple[str, str, str]:
    """Return whom a request counts for: the user, or where nobody is named the session."""
    caller = request.caller
    return (caller.tenant, "user", caller.user) if caller.user else (caller.tenant, "session", caller.session)
