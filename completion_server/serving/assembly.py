"""Builds a service from settings: the same one for the server, for simulations and for tests."""

from collections.abc import Callable
from dataclasses import dataclass, field

from completion_server.admission.gate import AdmissionSettings, Gate, retry_after_ms
from completion_server.admission.loop_lag import LoopLagMonitor
from completion_server.admission.quotas import Quotas
from completion_server.core.clock import Clock
from completion_server.core.events import Emit, guarded
from completion_server.engine.settings import CacheScope
from completion_server.limits.shared import Limiters
from completion_server.scheduling.book import Book
from completion_server.scheduling.limiter import ConcurrencyLimiter
from completion_server.scheduling.queue import ORDERS
from completion_server.scheduling.settings import SchedulingSettings, ShedSettings
from completion_server.scheduling.shedding import Shedding
from completion_server.serving.generate import Generates, Generator, Prompts
from completion_server.serving.runner import Runner
from completion_server.serving.service import CompletionCache, Parts, ReplicaGroup, Service

_FIRST_TOKEN_SHARE = 0.75
"""Share of a request's budget that the engine may take; the rest is for waiting."""


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """The settings that a service is built from."""

    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    shed: ShedSettings = field(default_factory=ShedSettings)
    delta_pause_s: float = 0.0
    """Minimum time between two messages with text of one answer."""
    cache_scope: CacheScope = "user"
    """The prompts that share entries of the prefix cache: those of one user or of one tenant."""


def assemble(
    settings: ServingSettings,
    engine: Generates,
    prompts: Prompts,
    clock: Clock,
    emit: Emit,
    *,
    loop_lag: LoopLagMonitor | None = None,
    cache: CompletionCache | None = None,
    limiters: Limiters | None = None,
    replicas: ReplicaGroup | None = None,
    remaining_start_s: Callable[[], float | None] = lambda: None,
    num_speculative_tokens: Callable[[int], int] = lambda _num_seqs: 0,
) -> Service:
    """Return a service. `loop_lag` is run by the caller; without one no request is shed for loop lag.

    `limiters` make the limits of users and tenants; without them they are this process's own.

    `remaining_start_s` predicts when the engine will be ready, while it is not. `num_speculative_tokens` returns the
    active K of a number of generations.
    """
    admission, emit = settings.admission, guarded(emit)
    parts = Parts(
        gate=Gate(admission, remaining_start_s, limiters),
        quotas=Quotas(admission, limiters),
        runner=Runner(make_book(settings), clock, emit),
        prompts=prompts,
        generator=_make_generator(settings, engine, prompts, clock, remaining_start_s),
        loop_lag=loop_lag or LoopLagMonitor(0.0, clock, emit),
    )
    return Service(
        parts,
        clock,
        emit,
        settings.scheduling,
        budget_s=settings.shed.budget_ms / 1000,
        retry_after_ms=admission.retry_after_ms,
        delta_pause_s=settings.delta_pause_s,
        cache_scope=settings.cache_scope,
        cache=cache,
        replicas=replicas,
        num_speculative_tokens=num_speculative_tokens,
    )


def _make_generator(
    settings: ServingSettings,
    engine: Generates,
    prompts: Prompts,
    clock: Clock,
    remaining_start_s: Callable[[], float | None],
) -> Generator:
    return Generator(
        prompts,
        engine,
        clock,
        cache_scope=settings.cache_scope,
        retry_after_ms=lambda: retry_after_ms(settings.admission, remaining_start_s()),
    )


def make_book(settings: ServingSettings) -> Book:
    """Return the book that the settings describe."""
    scheduling, shed = settings.scheduling, settings.shed
    least = min(scheduling.min_slots, scheduling.max_slots)
    first_token_s = _FIRST_TOKEN_SHARE * shed.budget_ms / 1000
    limiter = ConcurrencyLimiter(least, scheduling.max_slots, first_token_s, scheduling.step_tolerance)
    return Book(
        limiter.limit,
        scheduling.max_queued,
        order=ORDERS[scheduling.order],
        shedding=Shedding(shed.when),
        max_retry_after_ms=settings.admission.retry_after_ms,
        limiter=limiter,
    )
