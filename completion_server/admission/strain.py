"""Whether this process keeps up with its own work.

Where more comes in than one event loop can handle, every turn of the loop takes longer, all that is in it waits as
long, and soon nobody is answered in time. How long the present turn has lasted is how long what is handled now has
waited at least: beyond a limit it is cheaper for all to turn newcomers away than to make everybody late.
"""

import asyncio
from collections.abc import Callable

from completion_server.core.clock import Clock

_EVERY_S = 0.01


class Strain:
    """Looks at the clock once in every turn of the event loop, but not more often than every 10 ms."""

    def __init__(self, limit_s: float, clock: Clock, on_lag: Callable[[float], None] = lambda _seconds: None) -> None:
        """Be behind when a turn takes `limit_s`; 0 is never. `on_lag` is told by how much each look came late."""
        self._limit_s = limit_s
        self._clock = clock
        self._on_lag = on_lag
        self._looked_at = clock.now()

    def is_behind(self, now: float) -> bool:
        """Tell whether what is handled now has waited for too long already."""
        return 0 < self._limit_s < now - self._looked_at - _EVERY_S

    def look(self) -> None:
        """A turn of the loop begins."""
        now = self._clock.now()
        self._on_lag(max(0.0, now - self._looked_at - _EVERY_S))
        self._looked_at = now

    async def run(self) -> None:
        """Look, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_EVERY_S)
