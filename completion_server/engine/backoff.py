"""Exponential back-off before a failed engine restarts. Pure."""

from completion_server.engine.settings import EngineSettings


class Backoff:
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
