"""Measures other processes: CPU time and memory with their children, and their Prometheus counters."""

import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import psutil
from prometheus_client.parser import text_string_to_metric_families

from loadtest import LoadTestError

_EVERY_S = 0.5

GENERATED_TOKENS = ("vllm:generation_tokens_total", "completion_engine_generated_tokens_total")
"""Counters of generated tokens: vLLM's own, or that of this project's server. Neither counts the tokens that a step in
flight still computes for an aborted request."""

_TIMEOUT_S = 10.0


class MetricsError(LoadTestError):
    """A counter can't be read; the message names its address and the reason."""


def read_counter(url: str, names: Sequence[str], labels: Mapping[str, str] | None = None) -> float:
    """Return `sum_counter` of a page. Raises MetricsError also if the page can't be read."""
    return sum_counter(read_page(url), names, url, labels)


def read_page(url: str) -> str:
    """Return the text of a page of metrics. Proxies are not used. Raises MetricsError if it can't be read."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except (urllib.error.URLError, OSError) as error:
        raise MetricsError(f"{url} can't be read: {error}") from error


def sum_counter(
    text: str, names: Sequence[str], source: str = "the text", labels: Mapping[str, str] | None = None
) -> float:
    """Return the first of these counters, summed over its other labels. Raises MetricsError if none is in the text."""
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    wanted = (labels or {}).items()
    for name in names:
        found = [each.value for each in samples if each.name == name and wanted <= each.labels.items()]
        if found:
            return sum(found)
    raise MetricsError(f"{source} shows no {names[0]}")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU and memory that a process and its children used during a run."""

    cpu_cores: float
    """CPU seconds per second."""
    peak_rss_bytes: int


class ProcessMeterError(LoadTestError):
    """The process can't be measured; the message names it."""


class ProcessMeter:
    """Measures a process while its context is open."""

    def __init__(self, pid: int) -> None:
        """Look the process up. Raises ProcessMeterError if there is no such process."""
        try:
            self._process = psutil.Process(pid)
        except psutil.Error as error:
            raise ProcessMeterError(f"there is no process {pid}") from error
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._began_at_s = self._cpu_at_first_s = 0.0
        self._peak_rss_bytes = 0.0
        self.usage: ProcessUsage | None = None
        """Usage while the context was open; None before it is closed, and if the process has ended by then."""

    def __enter__(self) -> Self:
        self._is_over.clear()
        self._peak_rss_bytes = 0.0
        self._began_at_s, self._cpu_at_first_s = time.monotonic(), self._cpu_s() or 0.0
        self._thread = threading.Thread(target=self._watch, name="process-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
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
