"""The policies' time: milliseconds of the event loop's clock."""

import asyncio
from collections.abc import Callable

_MS_PER_S = 1000


def now_ms() -> float:
    """Return the running loop's time."""
    return asyncio.get_running_loop().time() * _MS_PER_S


class Timer:
    """Calls a function once, at the time that was set last."""

    def __init__(self, function: Callable[[], None]) -> None:
        """Call `function` when it is time."""
        self._function = function
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ms: float) -> None:
        """Set the time; it replaces the one before."""
        self.stop()
        delay_s = max(0.0, at_ms - now_ms()) / _MS_PER_S
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._function)

    def stop(self) -> None:
        """Call nothing more until a time is set."""
        if self._handle is not None:
            self._handle.cancel()
