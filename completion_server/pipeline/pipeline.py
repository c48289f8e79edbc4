"""The pipeline: the one entry point to admission, scheduling, prompt, engine and streaming.

These packages don't import each other. This module, `completion` and `generator` connect them; `assembly` builds it.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from completion_server.admission.feedback import RecentAnswers
from completion_server.admission.gate import Gate, Permit, Readiness
from completion_server.admission.loop_lag import LoopLagMonitor
from completion_server.admission.quotas import Excess, Quotas
from completion_server.core.clock import Clock
from completion_server.core.errors import CompletionError
from completion_server.core.events import Emit, Feedback, FeedbackRefused, RequestRefused
from completion_server.core.outcome import CachedAnswer, CacheLevel, FinishReason, Outcome, ServedAnswer, ShedReason
from completion_server.core.request import Caller, Request, Trigger, key_of
from completion_server.engine.settings import CacheScope
from completion_server.pipeline.completion import ActiveCompletion, CacheLookup, Services
from completion_server.pipeline.generator import Generator, Prompts, cache_salt
from completion_server.scheduling.queue import QueueEntry
from completion_server.scheduling.reattach import AnswerKey, Continuation
from completion_server.scheduling.runner import Runner
from completion_server.scheduling.settings import SchedulingSettings

logger = logging.getLogger(__name__)

_NOTE_EVERY_S = 60.0


class CompletionCache(Protocol):
    """Completions that are known without a generation."""

    def look_up_nowait(self, request: Request, /) -> CacheLookup | None:
        """Look a request up; None if its answer is not kept."""
        ...


class NoCache:
    """A completion cache that keeps nothing."""

    def look_up_nowait(self, _request: Request, /) -> None:
        """Return None."""
        return


class ReplicaGroup(Protocol):
    """The other replicas of this server."""

    def stamp(self) -> int:
        """Return the place of a request that is accepted now, in an order that all replicas share."""
        ...

    def announce(self, entry: QueueEntry) -> None:
        """Tell the others that this replica has accepted a request. Returns at once."""
        ...


class NoReplicas:
    """A server with a single replica."""

    def stamp(self) -> int:
        """Return 0: nobody compares it."""
        return 0

    def announce(self, entry: QueueEntry) -> None:
        """Do nothing."""


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
    max_slots: int
    """The configured maximum of `num_slots`."""
    slots_reason: str
    """Why there are fewer slots than that; "" if there are not."""
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
        cache_scope: CacheScope = "user",
        cache: CompletionCache | None = None,
        replicas: ReplicaGroup | None = None,
        num_speculative_tokens: Callable[[int], int] = lambda _num_seqs: 0,
    ) -> None:
        """Connect the parts. A first token later than `budget_s` after receipt has no value.

        `num_speculative_tokens` returns the active K of a number of generations.

        Callers that share the prefix cache, by `cache_scope`, share the generations of equal requests.
        """
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
        self._cache_scope: CacheScope = cache_scope
        self._cache = cache or NoCache()
        self._replicas = replicas or NoReplicas()
        self._answers = RecentAnswers()
        self._num_speculative_tokens = num_speculative_tokens
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
        lookup = None if excess else self._cache.look_up_nowait(request)
        answer = lookup.answer if lookup is not None else None
        # A request that will not be computed needs no estimate of its cost.
        num_new_tokens = 0 if excess or answer else self._prompts.expected_new_tokens(request)
        reservation = self._quotas.reserve(request.caller, num_new_tokens, now)
        entry = self._entry(request, num_new_tokens)
        completion = ActiveCompletion(self._services, request, entry, reservation, lookup)
        completion.marks.admitted = self._clock.now()
        if excess is not None:
            self._note_limited_peer(excess, now)
            completion.is_rate_limited = True
            retry_after_ms = math.ceil(excess.wait_s * 1000)
            completion.end(Outcome(FinishReason.SHED, ShedReason.RATE_LIMITED, retry_after_ms, limit=excess.limit))
            return completion
        self._quotas.charge_request(request.caller, now)
        if answer is not None:
            completion.give(answer)
            self._runner.answer_nowait(completion, Outcome(answer.reason))
        elif request.trigger is not Trigger.EXPLICIT and self._loop_lag.is_behind(now):
            overload = Outcome(FinishReason.SHED, ShedReason.OVERLOAD, self._retry_after_ms)
            self._runner.answer_nowait(completion, overload)
        else:
            self._runner.submit_nowait(completion)
            if lookup is not None and completion.awaits_output:
                lookup.fetch_nowait(partial(self._answer_late, completion))
        self._announce(completion)
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
        reported = self._answers.accept((caller.owner, caller.session, sequence), feedback)
        if reported is not None:
            self._emit(reported)

    # Callers

    def check(self) -> None:
        """Check that the server can serve. Raises UnavailableError if not."""
        self._gate.check()

    def check_user(self, user: str) -> None:
        """Check that a caller names its user if required. Raises UnauthenticatedError if not."""
        self._gate.check_user(user)

    def enter_session(self, owner: str | None, peer: str, tenant: str | None = None) -> Permit:
        """Admit a session stream, see `Gate.enter_session`."""
        return self._gate.enter_session(owner, peer, tenant)

    def note_refused(self, error: CompletionError) -> None:
        """Report that a request or a session was refused."""
        self._emit(RequestRefused(error))

    def note_feedback_refused(self) -> None:
        """Report that an editor's feedback was not valid."""
        self._emit(FeedbackRefused())

    # State

    def now(self) -> float:
        """Return the time of the pipeline's clock, which requests and deadlines use."""
        return self._clock.now()

    def live_entries(self) -> list[QueueEntry]:
        """Return the live requests that may supersede others on other replicas."""
        return [entry for entry in self._runner.book.live_entries if entry.stamp]

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
            max_slots=self._scheduling.max_slots,
            slots_reason=self._runner.slots_reason,
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

    def _answer_late(self, completion: ActiveCompletion, answer: CachedAnswer) -> bool:
        """Answer a request that waits or computes its prompt, which then ends. Return whether it had use for that."""
        if not completion.awaits_output:
            return False
        completion.give(answer)
        self._runner.cancel_nowait(completion.request.id, Outcome(answer.reason))
        return True

    def _announce(self, completion: ActiveCompletion) -> None:
        """Tell other replicas of a request, unless a newer one of its lane is known here already."""
        if completion.entry.stamp and completion.finish_reason is not FinishReason.SUPERSEDED:
            self._replicas.announce(completion.entry)

    def _stamp(self, request: Request) -> int:
        """Return the request's place in the order that replicas share, 0 if it has none.

        Prefetches supersede nothing that a user waits for, and a caller whom another replica would not know has no
        requests there.
        """
        is_alone = request.trigger is Trigger.PREFETCH or not request.caller.is_known_everywhere
        return 0 if is_alone or not self._scheduling.supersede else self._replicas.stamp()

    def _answered(self, request: Request, num_characters: int, ttft_s: float, cache_level: CacheLevel) -> None:
        k: int | None = None
        if cache_level is CacheLevel.NONE:
            k = self._num_speculative_tokens(self._runner.book.num_occupied) if request.sampling.speculate else 0
        caller, served = request.caller, ServedAnswer(ttft_s, k, cache_level)
        self._answers.add((caller.owner, caller.session, request.sequence), num_characters, self._clock.now(), served)

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
        caller, scheduling = request.caller, self._scheduling
        continuation = Continuation.of(request)
        lane = caller.owner if scheduling.lane == "user" else key_of(caller.owner, caller.session)
        return QueueEntry(
            id=request.id,
            lane=lane if scheduling.supersede else request.id,
            session=caller.session,
            sequence=request.sequence,
            trigger=request.trigger,
            deadline=request.deadline,
            arrived_at=request.received_at,
            ttft_deadline=min(request.received_at + self._budget_s, request.deadline.at),
            num_new_tokens=num_new_tokens,
            continuation=continuation if scheduling.typing_through else None,
            answer_key=(
                AnswerKey.of(cache_salt(caller, self._cache_scope), request, continuation)
                if scheduling.single_flight
                else None
            ),
            stamp=self._stamp(request),
        )
