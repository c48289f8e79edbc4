"""Detects event-loop overload. Loop lag is a lower bound on how long the current work has waited.

If more work arrives than one event loop can handle, each turn of the loop takes longer, everything in it waits as long,
and soon no answer is in time. Beyond a limit it is cheaper for all to turn new requests away than to make every request
late.
"""

import asyncio

from completion_server.core.clock import Clock
from completion_server.core.events import Emit, LoopLagged

_EVERY_S = 0.01


class LoopLagMonitor:
    """Looks at the clock once in every turn of the event loop, but not more often than every 10 ms."""

    def __init__(self, limit_s: float, clock: Clock, emit: Emit = lambda _event: None) -> None:
        """Be behind if a turn takes `limit_s`; 0 is never. Every look emits by how much it came late."""
        self._limit_s = limit_s
        self._clock = clock
        self._emit = emit
        self._looked_at = clock.now()

    def is_behind(self, now: float) -> bool:
        """Return whether the current work has waited for too long already."""
        return 0 < self._limit_s < now - self._looked_at - _EVERY_S

    def look(self) -> None:
        """A turn of the loop begins."""
        now = self._clock.now()
        self._emit(LoopLagged(max(0.0, now - self._looked_at - _EVERY_S)))
        self._looked_at = now

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_EVERY_S)
