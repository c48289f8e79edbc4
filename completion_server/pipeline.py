"""The pipeline: the one entry point to admission, scheduling, prompt, engine and streaming.

These packages don't import each other. This module, `completion` and `generator` connect them; `assembly` builds it.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from completion_server.admission.feedback import Answers
from completion_server.admission.gate import Gate, Permit, Readiness
from completion_server.admission.loop_lag import LoopLagMonitor
from completion_server.admission.quotas import Excess, Quotas
from completion_server.completion import ActiveCompletion, Services
from completion_server.core.clock import Clock
from completion_server.core.errors import CompletionError
from completion_server.core.events import Emit, Feedback, FeedbackRefused, FeedbackReported, RequestRefused
from completion_server.core.outcome import FinishReason, Outcome, ShedReason
from completion_server.core.request import Caller, Request, Trigger, key_of
from completion_server.generator import Generator, Prompts
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import Continuation
from completion_server.scheduling.runner import Runner
from completion_server.scheduling.settings import SchedulingSettings

logger = logging.getLogger(__name__)

_NOTE_EVERY_S = 60.0

Lookup = Callable[[Request], str | None]
"""Returns the text of an answer that is known without a generation, None if there is none."""


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """A snapshot of the server's load."""

    readiness: Readiness
    num_sessions: int
    num_live: int
    """Requests whose end is still to come."""
    num_queued: int
    num_occupied: int
    """Slots taken, by requests that run and by generations that are being aborted."""
    num_slots: int
    num_held: int
    """Requests that are live or whose generation is still being aborted."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that `assembly` builds and a pipeline owns."""

    gate: Gate
    quotas: Quotas
    runner: Runner
    prompts: Prompts
    generator: Generator
    loop_lag: LoopLagMonitor


class Pipeline:
    """Accepts requests and answers them; the only part of the server that rpc calls for requests."""

    def __init__(
        self,
        parts: Parts,
        clock: Clock,
        emit: Emit,
        scheduling: SchedulingSettings,
        *,
        budget_s: float,
        retry_after_ms: int,
        delta_pause_s: float,
        lookup: Lookup = lambda _request: None,
    ) -> None:
        """Connect the parts. A first token later than `budget_s` after receipt has no value."""
        self._gate = parts.gate
        self._quotas = parts.quotas
        self._runner = parts.runner
        self._prompts = parts.prompts
        self._loop_lag = parts.loop_lag
        self._clock = clock
        self._emit = emit
        self._scheduling = scheduling
        self._budget_s = budget_s
        self._retry_after_ms = retry_after_ms
        self._lookup = lookup
        self._answers = Answers()
        self._services = Services(
            parts.generator, clock, emit, cancel=self.cancel, answered=self._answered,
            delta_pause_s=delta_pause_s,
        )  # fmt: skip
        self._next_note_at = -math.inf

    # Requests

    def open(self, request: Request) -> ActiveCompletion:
        """Accept a request and return its answer, which may have ended already.

        Raises:
            UnavailableError: the server can't serve now.

        """
        self._gate.check()
        now = self._clock.now()
        excess = self._quotas.excess(request.caller, now)
        text = None if excess else self._lookup(request)
        # A request that will not be computed needs no estimate of its cost.
        num_new_tokens = 0 if excess or text is not None else self._prompts.expected_new_tokens(request)
        reservation = self._quotas.reserve(request.caller, num_new_tokens, now)
        completion = ActiveCompletion(self._services, request, self._entry(request, num_new_tokens), reservation)
        completion.marks.admitted = self._clock.now()
        if excess is not None:
            self._note_limited_peer(excess, now)
            completion.is_rate_limited = True
            completion.end(Outcome(FinishReason.SHED, ShedReason.RATE_LIMITED, math.ceil(excess.wait_s * 1000)))
            return completion
        self._quotas.charge_request(request.caller, now)
        if text is not None:
            completion.give(text)
            self._runner.answer_nowait(completion, Outcome(FinishReason.STOP))
        elif request.trigger is not Trigger.EXPLICIT and self._loop_lag.is_behind(now):
            overload = Outcome(FinishReason.SHED, ShedReason.OVERLOAD, self._retry_after_ms)
            self._runner.answer_nowait(completion, overload)
        else:
            self._runner.submit_nowait(completion)
        return completion

    def cancel(self, request_id: str, outcome: Outcome) -> None:
        """End a request, if it has not ended, and abort its generation."""
        self._runner.cancel_nowait(request_id, outcome)

    def supersede(self, lane: str, stamp: int) -> None:
        """End the requests of a lane that are older than `stamp`: another replica has a newer one."""
        self._runner.supersede_nowait(lane, stamp)

    def report_feedback(self, caller: Caller, sequence: int, feedback: Feedback) -> None:
        """Take an editor's feedback on an answer.

        Raises:
            InvalidRequestError: the answer is not known, or the report counts more characters than it had.

        """
        if self._answers.accept((caller.owner, caller.session, sequence), feedback):
            self._emit(FeedbackReported(feedback))

    # Callers

    def check(self) -> None:
        """Check that the server can serve. Raises UnavailableError if not."""
        self._gate.check()

    def check_user(self, user: str) -> None:
        """Check that a caller names its user if required. Raises UnauthenticatedError if not."""
        self._gate.check_user(user)

    def enter_session(self, owner: str | None, peer: str) -> Permit:
        """Admit a session stream, see `Gate.enter_session`."""
        return self._gate.enter_session(owner, peer)

    def note_refused(self, error: CompletionError) -> None:
        """Report that a request or a session was refused."""
        self._emit(RequestRefused(error.code))

    def note_feedback_refused(self) -> None:
        """Report that an editor's feedback was not valid."""
        self._emit(FeedbackRefused())

    # State

    def now(self) -> float:
        """Return the time of the pipeline's clock, which requests and deadlines use."""
        return self._clock.now()

    def load(self) -> LoadSnapshot:
        """Return the current load."""
        book = self._runner.book
        return LoadSnapshot(
            readiness=self._gate.readiness,
            num_sessions=self._gate.num_sessions,
            num_live=book.num_live,
            num_queued=book.num_queued,
            num_occupied=book.num_occupied,
            num_slots=book.num_slots,
            num_held=self._runner.num_held,
        )

    @property
    def readiness(self) -> Readiness:
        """Whether the server can serve now."""
        return self._gate.readiness

    def set_engine_ready(self, is_ready: bool) -> None:
        """Admit requests if the engine is ready, else refuse them."""
        self._gate.set_engine_ready(is_ready)

    async def run(self) -> None:
        """Run requests until cancelled."""
        await self._runner.run()

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._gate.drain()

    async def wait_idle(self) -> None:
        """Wait until no request is live and no generation runs."""
        await self._runner.wait_idle()

    def end_all(self, outcome: Outcome) -> None:
        """End every live request."""
        self._runner.end_all_nowait(outcome)

    def _answered(self, request: Request, num_characters: int) -> None:
        caller = request.caller
        self._answers.add((caller.owner, caller.session, request.sequence), num_characters, self._clock.now())

    def _note_limited_peer(self, excess: Excess, now: float) -> None:
        """Log at intervals that an address exceeds its limit, since it may be a proxy with many users."""
        if excess.peer and now >= self._next_note_at:
            self._next_note_at = now + _NOTE_EVERY_S
            logger.warning(
                "requests from %s exceed the limit of one address; if many users share it, such as behind a proxy, see "
                "admission.users_per_peer",
                excess.peer,
            )

    def _entry(self, request: Request, num_new_tokens: int) -> QueueEntry:
        caller = request.caller
        lane = caller.owner if self._scheduling.lane == "user" else key_of(caller.owner, caller.session)
        return QueueEntry(
            id=request.id,
            lane=lane if self._scheduling.supersede else request.id,
            session=caller.session,
            sequence=request.sequence,
            trigger=request.trigger,
            deadline=request.deadline,
            arrived_at=request.received_at,
            ttft_deadline=min(request.received_at + self._budget_s, request.deadline.at),
            num_new_tokens=num_new_tokens,
            continuation=Continuation.of(request) if self._scheduling.typing_through else None,
        )
