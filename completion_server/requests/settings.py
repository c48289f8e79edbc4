"""The settings of a service, and the book that they describe: alike for the server, for simulations and for tests."""

from dataclasses import dataclass, field

from completion_server.core.events import Emit
from completion_server.requests.limits.settings import AdmissionSettings
from completion_server.requests.scheduling.book import Book, Executor
from completion_server.requests.scheduling.limiter import ConcurrencyLimiter
from completion_server.requests.scheduling.queue import ORDERS
from completion_server.requests.scheduling.settings import SchedulingSettings, ShedSettings
from completion_server.requests.scheduling.shedding import Shedding

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


def make_book(settings: ServingSettings, engine: Executor, *, emit: Emit = lambda _event: None) -> Book:
    """Return the book that the settings describe, in front of an engine."""
    scheduling, shed = settings.scheduling, settings.shed
    least = min(scheduling.min_slots, scheduling.max_slots)
    first_token_s = _FIRST_TOKEN_SHARE * shed.budget_ms / 1000
    limiter = ConcurrencyLimiter(least, scheduling.max_slots, first_token_s, scheduling.step_tolerance)
    return Book(
        engine,
        limiter.limit,
        scheduling.max_queued,
        order=ORDERS[scheduling.order],
        shedding=Shedding(shed.when),
        max_retry_after_ms=settings.admission.retry_after_ms,
        limiter=limiter,
        emit=emit,
    )
