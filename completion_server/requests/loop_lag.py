"""Detects event-loop overload. Loop lag is a lower bound on how long the current work has waited.

If more work arrives than one event loop can handle, each iteration of the loop takes longer, and all work in it waits
as long, until every answer is late. Beyond a limit the server therefore sheds new requests.
"""

import asyncio

from completion_server.core.clock import Clock
from completion_server.core.errors import Limit
from completion_server.core.events import Emit, LoopLagged

_EVERY_S = 0.01


class LoopLagMonitor:
    """Reads the clock in each iteration of the event loop, at most every 10 ms."""

    def __init__(self, limit_s: float, clock: Clock, emit: Emit = lambda _event: None) -> None:
        """Report overload if the loop is more than `limit_s` late; 0 never does. Each reading emits its lateness."""
        self._limit_s = limit_s
        self.limit = Limit("shed.lag_ms", limit_s * 1000)
        self._clock = clock
        self._emit = emit
        self._ticked_at = clock.now()

    def is_behind(self, now: float) -> bool:
        """Return whether the current work has waited longer than the limit."""
        return 0 < self._limit_s < now - self._ticked_at - _EVERY_S

    def tick(self) -> None:
        """Read the clock at the start of an iteration, and emit its lateness."""
        now = self._clock.now()
        self._emit(LoopLagged(max(0.0, now - self._ticked_at - _EVERY_S)))
        self._ticked_at = now

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(_EVERY_S)
