"""Measures the CPU time and the memory of another process and its children."""

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

from loadtest.stats.usage import ProcessUsage

_EVERY_S = 0.5


class ProcessMeterError(Exception):
    """The process can't be measured; the message names it."""


class ProcessMeter:
    """Measures a process while its context is open."""

    def __init__(self, pid: int) -> None:
        """Look the process up.

        Raises:
            ProcessMeterError: there is no such process.

        """
        try:
            self._process = psutil.Process(pid)
        except psutil.Error as error:
            msg = f"there is no process {pid}"
            raise ProcessMeterError(msg) from error
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_at_s = self._cpu_at_first_s = 0.0
        self._peak_rss_bytes = 0.0
        self.usage: ProcessUsage | None = None
        """Usage while the context was open; None before it is closed, and if the process has ended by then."""

    def __enter__(self) -> Self:
        """Start to measure."""
        self._is_over.clear()
        self._peak_rss_bytes = 0.0
        self._began_at_s, self._cpu_at_first_s = time.monotonic(), self._cpu_s() or 0.0
        self._thread = threading.Thread(target=self._watch, name="process-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and compute `usage`."""
        wall_s = time.monotonic() - self._began_at_s
        cpu_s = self._cpu_s()
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if cpu_s is None:
            self.usage = None
        else:
            self.usage = ProcessUsage((cpu_s - self._cpu_at_first_s) / max(wall_s, 1e-6), int(self._peak_rss_bytes))

    def _watch(self) -> None:
        while True:
            rss_bytes = sum(self._of_family(lambda each: int(each.memory_info().rss)))
            self._peak_rss_bytes = max(self._peak_rss_bytes, rss_bytes)
            if self._is_over.wait(_EVERY_S):
                return

    def _cpu_s(self) -> float | None:
        """Return the CPU seconds of the process and its children; None if the process has ended."""
        found = self._of_family(lambda each: float(sum(each.cpu_times()[:2])))
        return sum(found) if found else None

    def _of_family(self, look: Callable[[psutil.Process], float]) -> list[float]:
        """Return a value of the process and of each child, for those that still run."""
        found: list[float] = []
        with contextlib.suppress(psutil.Error):
            found.append(look(self._process))
            for child in self._process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found.append(look(child))
        return found
