"""The service: the one way in for requests. It joins admission, cache, scheduling, prompts, engine and streaming.

These packages don't import each other. The modules of this room connect them: a request goes down through
`Service.open`, `Book.submit` and `Runner.start` to the engine; its text comes up through `Book.output` and
`Completion.receive` to the mailbox that rpc reads.
"""

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from completion_server.core.clock import Clock
from completion_server.core.errors import NoNextEditsError, ShedError
from completion_server.core.events import Emit, Feedback, Marks, guarded
from completion_server.core.outcome import (
    SUPERSEDED,
    CachedAnswer,
    CacheLevel,
    FinishReason,
    Outcome,
    ServedAnswer,
    ShedReason,
    Usage,
)
from completion_server.core.request import Caller, Request, Trigger, key_of
from completion_server.requests.completion import CacheLookup, Completion, Services
from completion_server.requests.feedback import RecentAnswers
from completion_server.requests.gate import Gate, Readiness, retry_after_ms
from completion_server.requests.isolation import Isolation
from completion_server.requests.limits.file_quotas import FileQuotas
from completion_server.requests.limits.quotas import Quotas, Reservation
from completion_server.requests.limits.rate_limiter import Excess
from completion_server.requests.loop_lag import LoopLagMonitor
from completion_server.requests.rules import EditPrompts, EditRules, Prompts
from completion_server.requests.runner import Generates, Runner
from completion_server.requests.scheduling.reattach import AnswerKey, Continuation
from completion_server.requests.scheduling.requests import LiveRequest
from completion_server.requests.settings import ServingSettings, make_book

logger = logging.getLogger(__name__)

_NOTE_EVERY_S = 60.0
_SECRET_BYTES = 32
_SPARE_SHARE = 0.5
"""An engine has capacity to spare if a newcomer's first token is expected within this share of the budget. With 0.7, a
rare user beside an address that floods with short prompts was shed at every third request; with 0.5 hardly ever."""


class CompletionCache(Protocol):
    """Completions that are known without a generation."""

    def look_up_nowait(self, request: Request, /) -> CacheLookup | None:
        """Look a request up; None if its answer is not kept."""
        ...


class ReplicaGroup(Protocol):
    """The other replicas of this server."""

    def stamp(self) -> int:
        """Return the time of a request that is accepted now, in nanoseconds on the host's clock; 0 without others."""
        ...

    def announce(self, live: LiveRequest) -> None:
        """Tell the others that this replica has accepted a request. Returns at once."""
        ...


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """A snapshot of the server's load."""

    readiness: Readiness
    num_sessions: int
    num_live: int
    """Requests whose end is still to come."""
    num_queued: int
    num_occupied: int
    """Slots taken, by generations that requests read and by those that are stopping."""
    num_slots: int
    max_slots: int
    """The configured maximum of `num_slots`."""
    slots_reason: str
    """Why there are fewer slots than that; "" if there are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceParts:
    """What a service works with if it is given."""

    isolation: Isolation | None = None
    """Without it users share no cache, under a secret of the service alone."""
    loop_lag: LoopLagMonitor | None = None
    """Run by the caller; without it no request is shed for loop lag."""
    edits: EditPrompts | None = None
    """Without it a request for a next edit is refused."""
    cache: CompletionCache | None = None
    file_quotas: FileQuotas | None = None
    """The limits that `admission.quotas_file` gives."""
    replicas: ReplicaGroup | None = None
    remaining_start_s: Callable[[], float | None] = lambda: None
    """Predicts when the engine will be ready, while it is not."""
    num_speculative_tokens: Callable[[int], int] = lambda _num_seqs: 0
    """Returns the active K of a number of generations."""
    weight_of: Callable[[str], float] = lambda _tenant: 1.0
    """Returns the weight of a tenant by its name, now."""


class Service:
    """Accepts requests and answers them; the only part of the server that rpc calls for requests.

    Callers use two of its parts directly: the `gate` before a request, and the `runner` to run, end and await them all.
    """

    def __init__(
        self,
        settings: ServingSettings,
        engine: Generates,
        prompts: Prompts,
        clock: Clock,
        emit: Emit,
        parts: ServiceParts | None = None,
    ) -> None:
        """Build a service in front of an engine."""
        parts = parts or ServiceParts()
        admission, scheduling, emit = settings.admission, settings.scheduling, guarded(emit)
        self.gate = Gate(admission, parts.remaining_start_s, parts.file_quotas)
        self.emit = emit
        self.now = clock.now
        """Returns the time of the clock that requests and deadlines use."""
        self._quotas = Quotas(admission, parts.file_quotas)
        self._prompts = prompts
        self._edits = parts.edits
        self._loop_lag = parts.loop_lag or LoopLagMonitor(0.0, clock, emit)
        self._scheduling = scheduling
        self._budget_s = settings.shed.budget_ms / 1000
        self._retry_after_ms = admission.retry_after_ms
        self._isolation = parts.isolation or Isolation(os.urandom(_SECRET_BYTES))
        self._cache = parts.cache
        self._replicas = parts.replicas if scheduling.supersede else None
        self._answers = RecentAnswers()
        self._num_speculative_tokens = parts.num_speculative_tokens
        self._weight_of = parts.weight_of
        self.runner = Runner(
            partial(make_book, settings, emit=emit),
            clock,
            engine,
            self._prompts_of,
            self._isolation,
            lambda: retry_after_ms(admission, parts.remaining_start_s()),
        )
        self._book = self.runner.book
        self._services = Services(clock, emit, self.runner.cancel_nowait, self._answered, settings.delta_pause_s)
        self._next_note_at = -math.inf

    def open(self, request: Request) -> Completion:
        """Accept a request and return its answer, which may have ended already.

        Raises:
            UnavailableError: the server can't serve now.
            NoNextEditsError: it is a request for a next edit, which the served model does not write.

        """
        self.gate.check()
        prompts = self._prompts_of(request)
        now = self.now()
        excess = self._quotas.excess(request.caller, now)
        is_peer_within = excess is None
        if excess is not None and excess.peer and self._has_room_to_spare(request, now):
            excess = None
        lookup = None
        edit_rules = None
        if self._edits is not None and excess is None and request.next_edit is not None:
            edit_rules = self._edits.answer(request)
        if self._cache is not None and excess is None and request.next_edit is None and request.use_completion_cache:
            lookup = self._cache.look_up_nowait(request)
        answer = lookup.answer if lookup is not None else None
        # A request that is shed or answered needs no charge.
        num_new_tokens = 0 if excess or answer else prompts.expected_new_tokens(request)
        reservation = self._quotas.reserve(request.caller, num_new_tokens, now, charges_peer=is_peer_within)
        completion = self._completion(request, num_new_tokens, reservation, lookup, edit_rules)
        completion.marks.admitted = self.now()
        if excess is not None:
            self._note_limited_peer(excess, now)
            completion.is_rate_limited = True
            limit, retry_after_ms = excess.limit, excess.retry_after_ms
            completion.end(Outcome(FinishReason.SHED, ShedReason.RATE_LIMITED, retry_after_ms, limit=limit), Usage())
            return completion
        self._quotas.charge_request(request.caller, now, charges_peer=is_peer_within)
        self._begin(completion, lookup, now)
        # Other replicas are told of a request, unless a newer one of its lane is known here already.
        if self._replicas is not None and completion.stamp and completion.outcome != SUPERSEDED:
            self._replicas.announce(completion)
        return completion

    def charge(self, caller: Caller) -> None:
        """Charge a message that the engine has nothing to do for, like a request.

        Raises:
            ShedError: its caller is over a limit.

        """
        now = self.now()
        excess = self._quotas.excess(caller, now)
        if excess is not None and (not excess.peer or self._loop_lag.is_behind(now)):
            self._note_limited_peer(excess, now)
            raise ShedError(ShedReason.RATE_LIMITED.value, excess.retry_after_ms, excess.limit)
        self._quotas.charge_request(caller, now, charges_peer=excess is None)

    def report_feedback(self, caller: Caller, sequence: int, feedback: Feedback) -> None:
        """Take an editor's feedback on an answer. A repeated report does not count.

        Raises:
            InvalidRequestError: the answer is not known, or the report counts more characters than it had.

        """
        reported = self._answers.accept((caller.owner, caller.session, sequence), feedback, self.now())
        if reported is not None:
            self.emit(replace(reported, caller=caller))

    def known_to_replicas(self) -> list[LiveRequest]:
        """Return the live requests that may supersede others on other replicas."""
        return [live for live in self._book.live_requests if live.stamp]

    def load(self) -> LoadSnapshot:
        """Return the current load."""
        book, gate = self._book, self.gate
        return LoadSnapshot(
            readiness=gate.readiness,
            num_sessions=gate.num_sessions,
            num_live=book.num_live,
            num_queued=book.num_queued,
            num_occupied=book.num_occupied,
            num_slots=book.num_slots,
            max_slots=self._scheduling.max_slots,
            slots_reason=book.limiter.reason if book.limiter is not None else "",
        )

    def _begin(self, completion: Completion, lookup: CacheLookup | None, now: float) -> None:
        """Answer a request at once if its answer is known or it must be shed, else queue it."""
        request = completion.request
        answer = lookup.answer if lookup is not None else None
        if answer is not None:
            completion.give(answer)
            self.runner.answer_nowait(completion, Outcome(answer.reason))
        elif not completion.has_work:
            self.runner.answer_nowait(completion, Outcome(FinishReason.STOP))
        elif request.trigger is not Trigger.EXPLICIT and self._loop_lag.is_behind(now):
            limit = self._loop_lag.limit
            overload = Outcome(FinishReason.SHED, ShedReason.OVERLOAD, self._retry_after_ms, limit=limit)
            self.runner.answer_nowait(completion, overload)
        else:
            self.runner.submit_nowait(completion)
            if lookup is not None and completion.awaits_output:
                lookup.fetch_nowait(partial(self._answer_late, completion))

    def _has_room_to_spare(self, request: Request, now: float) -> bool:
        """Return whether the engine can take a request and still serve a newcomer in time."""
        if self._loop_lag.is_behind(now):
            return False
        num_new_tokens = self._prompts_of(request).expected_new_tokens(request)
        return self._book.first_token_s(num_new_tokens) <= _SPARE_SHARE * self._budget_s

    def _prompts_of(self, request: Request) -> Prompts:
        """Return the builder of a request's prompt."""
        if request.next_edit is None:
            return self._prompts
        if self._edits is None:
            msg = "the served model does not write next edits (prompt.next_edit_template)"
            raise NoNextEditsError(msg)
        return self._edits

    def _answer_late(self, completion: Completion, answer: CachedAnswer) -> bool:
        """Answer a request that waits or computes its prompt, which then ends. Return whether it had use for that."""
        if not completion.awaits_output:
            return False
        completion.give(answer)
        completion.cancel(Outcome(answer.reason))
        return True

    def _stamp(self, request: Request) -> int:
        """Return the request's place in the order that replicas share, 0 if it has none.

        Prefetches supersede nothing that a user waits for, and a caller whom another replica would not know has no
        requests there.
        """
        is_local = request.lane or request.trigger is Trigger.PREFETCH or not request.caller.is_known_everywhere
        if self._replicas is None or is_local:
            return 0
        return self._replicas.stamp()

    def _answered(self, request: Request, num_characters: int, ttft_s: float, cache_level: CacheLevel) -> None:
        k: int | None = None
        if cache_level is CacheLevel.NONE:
            k = self._num_speculative_tokens(self._book.num_occupied) if request.sampling.speculate else 0
        caller, served = request.caller, ServedAnswer(ttft_s, k, cache_level)
        self._answers.add((caller.owner, caller.session, request.sequence), num_characters, self.now(), served)

    def _note_limited_peer(self, excess: Excess, now: float) -> None:
        """Log at intervals that an address exceeds its limit, since it may be a proxy with many users."""
        if excess.peer and now >= self._next_note_at:
            self._next_note_at = now + _NOTE_EVERY_S
            logger.warning(
                "requests from %s exceed the limit of one address, and the engine has no capacity to spare; if many "
                "users share the address, see admission.users_per_peer",
                excess.peer,
            )

    def _completion(
        self,
        request: Request,
        num_new_tokens: int,
        reservation: Reservation,
        lookup: CacheLookup | None,
        edit_rules: EditRules | None,
    ) -> Completion:
        caller, scheduling = request.caller, self._scheduling
        continuation, may_share = Continuation.of(request), request.use_completion_cache and request.next_edit is None
        lane = caller.owner if scheduling.lane == "user" else key_of(caller.owner, caller.session)
        if request.lane:
            lane = key_of(lane, request.lane)
        return Completion(
            request=request,
            services=self._services,
            reservation=reservation,
            lookup=lookup,
            edit_rules=edit_rules,
            id=request.id,
            lane=lane if scheduling.supersede else request.id,
            session=caller.session,
            sequence=request.sequence,
            trigger=request.trigger,
            deadline=request.deadline,
            arrived_at=request.received_at,
            ttft_deadline=min(request.received_at + self._budget_s, request.deadline.at),
            num_new_tokens=num_new_tokens,
            continuation=continuation if scheduling.typing_through and may_share else None,
            answer_key=(
                AnswerKey.of(self._isolation.salt(caller), request, continuation)
                if scheduling.single_flight and may_share
                else None
            ),
            stamp=self._stamp(request),
            owner=caller.owner,
            tenant=caller.tenant_key,
            weight=self._weight_of(caller.tenant) if caller.is_verified else 1.0,
            marks=Marks(request.received_at, trace=request.trace),
        )
