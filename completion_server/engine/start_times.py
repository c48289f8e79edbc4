"""How long starts of an engine take, what they do meanwhile, and how long to wait before the start after a failure."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from completion_server.core.files import write_atomically
from completion_server.engine.settings import EngineSettings

logger = logging.getLogger(__name__)

_MAX_ENTRIES = 64
PROGRESS_S = 3.0


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Log every few seconds what the block does, and for how long. A thread logs, so the block may hold the loop."""
    began_at, is_over = time.monotonic(), threading.Event()

    def report() -> None:
        while not is_over.wait(PROGRESS_S):
            logger.info("%s: %.0f s", what, time.monotonic() - began_at)

    thread = threading.Thread(target=report, daemon=True, name="progress")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class StartTimes:
    """Durations of the last start of each configuration, in a small file that outlives the process.

    The file is a convenience: one that can't be read counts as empty, and one that can't be written is left out.
    """

    def __init__(self, path: Path | None) -> None:
        """Keep the durations at `path`; without a path they are kept nowhere."""
        self._path = path

    def last_s(self, key: str) -> float | None:
        """Return how long the last start with this key took, None if that is not known."""
        return self._read().get(key)

    def record(self, key: str, seconds: float) -> None:
        """Keep the duration of a start."""
        if self._path is None:
            return
        entries = self._read()
        entries.pop(key, None)
        entries[key] = round(seconds, 1)
        kept = dict(list(entries.items())[-_MAX_ENTRIES:])
        try:
            write_atomically(self._path, json.dumps(kept, indent=1).encode())
        except OSError as error:
            logger.debug("the duration of this start is not kept: %s", error)

    def _read(self) -> dict[str, float]:
        if self._path is None:
            return {}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._path.read_text(encoding="utf-8"))
            if isinstance(found, dict):
                return {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
        return {}


class StartEstimate:
    """Predicts when the engine will be ready. All times are clock seconds."""

    def __init__(self, usual_s: float | None = None) -> None:
        """Begin with the duration of an earlier start, None if none is known."""
        self._usual_s = usual_s
        self._began_at: float | None = None

    def begin(self, at: float) -> None:
        """Note that a start begins, or will begin, at a time."""
        self._began_at = at

    def end(self, now: float) -> float:
        """Note that the start that began last has succeeded; return its duration."""
        assert self._began_at is not None
        self._usual_s = now - self._began_at
        self._began_at = None
        return self._usual_s

    def remaining_s(self, now: float) -> float | None:
        """Return the predicted time until an engine is ready, None if no start has been seen yet.

        If no start is under way, that is the time of a whole start. A start that takes longer than the last one has 0
        left.
        """
        if self._usual_s is None:
            return None
        began_at = now if self._began_at is None else self._began_at
        return max(0.0, began_at + self._usual_s - now)


class RestartBackoff:
    """Doubles the wait with each failure, until an engine has served for long enough."""

    def __init__(self, settings: EngineSettings) -> None:
        self._min_s = settings.restart_backoff_min_s
        self._max_s = settings.restart_backoff_max_s
        self._reset_s = settings.restart_backoff_reset_s
        self._wait_s = 0.0

    def next_wait_s(self, served_s: float) -> float:
        """Return how long to wait after the failure of an engine that served for `served_s`, 0 if it did not start."""
        if not self._wait_s or served_s >= self._reset_s:
            self._wait_s = self._min_s
        else:
            self._wait_s = min(2 * self._wait_s, self._max_s)
        return self._wait_s
