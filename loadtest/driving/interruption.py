"""Ctrl-C, and what a service manager sends: the first asks for an orderly end, the second ends at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While it is entered, a first signal is only noted. Outside the main thread it notes none."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.is_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def ask(self) -> None:
        """Ask for an orderly end, as a signal does."""
        self.is_asked = True

    def __enter__(self) -> Self:
        """Listen."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave signals to whoever had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


@contextmanager
def held_back() -> Iterator[None]:
    """Hold signals back, also from processes that are started meanwhile: those let them through when they can."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(_SIGNALS))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
