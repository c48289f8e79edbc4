"""Handles SIGINT and SIGTERM: the first signal asks for an orderly end, the second ends the process at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Records the first signal while its context is open. Outside the main thread it records none."""

    def __init__(self) -> None:
        """Start without a signal."""
        self.is_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def ask(self) -> None:
        """Ask for an orderly end, as a signal does."""
        self.is_asked = True

    def __enter__(self) -> Self:
        """Install the signal handlers."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the earlier signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


@contextmanager
def held_back() -> Iterator[None]:
    """Block signals, also in processes started meanwhile; those unblock them when they are ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(_SIGNALS))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
