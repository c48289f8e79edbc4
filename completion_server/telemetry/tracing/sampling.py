"""Decides which requests are traced when they are received. Knows nothing of OpenTelemetry."""

import random
from collections.abc import Callable

from completion_server.core.clock import Clock
from completion_server.core.trace_context import ParentSpan, TraceContext


class RateLimit:
    """Allows `per_s` events a second, and as many at once, but at least one if it is above 0."""

    def __init__(self, per_s: float, clock: Clock) -> None:
        """Begin full."""
        self._per_s = per_s
        self._most = max(1.0, per_s) if per_s else 0.0
        self._left = self._most
        self._clock = clock
        self._filled_at: float | None = None

    def take(self) -> bool:
        """Count one event, and return whether it is allowed."""
        now = self._clock.now()
        passed_s = 0.0 if self._filled_at is None else now - self._filled_at
        self._left = min(self._most, self._left + passed_s * self._per_s)
        self._filled_at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class HeadSampler:
    """Begins the trace of each request.

    A caller that records its own trace is followed, up to a limit, because every caller can ask for that. A caller that
    does not record its trace is followed, too. The others are sampled at random.
    """

    def __init__(
        self,
        ratio: float,
        caller_limit: RateLimit,
        *,
        seed: int | None = None,
        on_caller_limit: Callable[[], None] = lambda: None,
    ) -> None:
        """Sample the share `ratio`, 0 to 1. `seed` makes ids and choices repeatable.

        `on_caller_limit` is called for each request that is not sampled for its caller, because of the limit.
        """
        self._ratio = ratio
        self._caller_limit = caller_limit
        self._on_caller_limit = on_caller_limit
        self._random = random.Random(seed)

    def begin(self, traceparent: str, tracestate: str) -> TraceContext | None:
        """Return the trace context of a request; None if it has no caller's trace and is not sampled."""
        parent = ParentSpan.parse(traceparent, tracestate) if traceparent else None
        if parent is None:
            return self._context(None, is_sampled=True) if self._random.random() < self._ratio else None
        return self._context(parent, is_sampled=parent.is_sampled and self._follows())

    def begin_late(self) -> TraceContext:
        """Return the context of a request that is traced though it was not sampled when it was received."""
        return self._context(None, is_sampled=False)

    def _follows(self) -> bool:
        if self._caller_limit.take():
            return True
        self._on_caller_limit()
        return self._random.random() < self._ratio

    def _context(self, parent: ParentSpan | None, *, is_sampled: bool) -> TraceContext:
        trace_id = parent.trace_id if parent is not None else f"{self._random.getrandbits(128) or 1:032x}"
        return TraceContext(trace_id, f"{self._random.getrandbits(64) or 1:016x}", is_sampled, parent)
