"""A request's way through the rooms: admission, scheduling, prompt, engine, streaming, and back out.

The rooms don't know each other; this module and `completion` beside it join them, and rpc sees only these two.
"""

import logging
import math

from completion_server.admission.feedback import Answers
from completion_server.admission.gate import Gate
from completion_server.admission.quotas import Excess, Quotas
from completion_server.admission.strain import Strain
from completion_server.completion import Completion, Prompts, Rooms
from completion_server.core.clock import Clock
from completion_server.core.events import Feedback, Observer
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Caller, Request, Trigger
from completion_server.engine.settings import CacheScope
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.scheduling.claim import Claim
from completion_server.scheduling.runner import Runner
from completion_server.scheduling.settings import SchedulingSettings

logger = logging.getLogger(__name__)

_NOTE_EVERY_S = 60.0


class Pipeline:
    """Takes requests in."""

    def __init__(
        self,
        *,
        gate: Gate,
        quotas: Quotas,
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
        cache_scope: CacheScope = "user",
    ) -> None:
        """Join the rooms. A first token later than `budget_s` after receipt is worth nothing."""
        self.gate = gate
        self.runner = runner
        self.engine = engine
        self.clock = clock
        self.observer = observer
        self._quotas = quotas
        self._answers = Answers()
        self._prompts = prompts
        self._rooms = Rooms(
            runner, prompts, engine, clock, observer, retry_after_ms, delta_pause_s,
            charge_tokens=self._charge_tokens, answered=self._answered, cache_scope=cache_scope,
        )  # fmt: skip
        self._settings = scheduling
        self._budget_s = budget_s
        self._strain = strain or Strain(0.0, clock)
        self._retry_after_ms = retry_after_ms
        self._next_note_at = -math.inf

    def open(self, request: Request) -> Completion:
        """Take a request in and return its answer, perhaps already ended.

        Raises:
            UnavailableError: the server can't serve now.

        """
        self.gate.check()
        now = self.clock.now()
        excess = self._quotas.excess(request.caller, now)
        # What a request that is over its limits would cost is not worth finding out.
        num_new_tokens = 0 if excess else self._prompts.expected_new_tokens(request)
        completion = Completion(self._rooms, request, self._claim(request, num_new_tokens))
        completion.marks.admitted = self.clock.now()
        if excess is not None:
            self._note_limited_peer(excess, now)
            completion.is_rate_limited = True
            completion.end(Outcome(FinishReason.SHED, ShedReason.RATE_LIMITED, math.ceil(excess.wait_s * 1000)))
            return completion
        self._quotas.charge_request(request.caller, now)
        self._quotas.charge_tokens(request.caller, num_new_tokens, now)
        if request.trigger is not Trigger.EXPLICIT and self._strain.is_behind(now):
            self.runner.refuse_nowait(completion, Outcome(FinishReason.SHED, ShedReason.OVERLOAD, self._retry_after_ms))
        else:
            self.runner.submit_nowait(completion, takes_over=self._settings.typing_through)
        return completion

    def report_feedback(self, caller: Caller, sequence: int, feedback: Feedback) -> None:
        """Take in what an editor says about an answer.

        Raises:
            InvalidRequestError: the answer is not known, or the report claims more than its text.

        """
        if self._answers.accept((caller.owner, caller.session, sequence), feedback):
            self.observer.feedback_reported(feedback)

    def _answered(self, request: Request, num_characters: int) -> None:
        caller = request.caller
        self._answers.add((caller.owner, caller.session, request.sequence), num_characters, self.clock.now())

    def _charge_tokens(self, caller: Caller, num_tokens: int) -> None:
        self._quotas.charge_tokens(caller, num_tokens, self.clock.now())

    def _note_limited_peer(self, excess: Excess, now: float) -> None:
        """Say now and then that an address is limited as a whole: it may be a proxy that many users come through."""
        if excess.peer and now >= self._next_note_at:
            self._next_note_at = now + _NOTE_EVERY_S
            logger.warning(
                "requests from %s are limited as those of one address; if many users come from there, as through a "
                "proxy, see admission.users_per_peer",
                excess.peer,
            )

    def _claim(self, request: Request, num_new_tokens: int) -> Claim:
        caller = request.caller
        session = caller.session if self._settings.lane == "session" else ""
        return Claim(
            id=request.id,
            lane=(*caller.owner, session) if self._settings.supersede else request.id,
            session=caller.session,
            sequence=request.sequence,
            trigger=request.trigger,
            deadline=request.deadline,
            arrived_at=request.received_at,
            answer_by=min(request.received_at + self._budget_s, request.deadline.at),
            num_new_tokens=num_new_tokens,
        )
