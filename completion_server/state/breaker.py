"""The breaker of Redis: after a failure no command is sent until a probe succeeds. Pure.

One failure opens it: what replicas share is never needed for an answer, and the next probe is at most some hundred
milliseconds away.
"""


class Breaker:
    """Begins open: the first probe closes it."""

    def __init__(self, retry_s: float) -> None:
        """Probe every `retry_s` while open."""
        self._retry_s = retry_s
        self.is_open = True
        self.reason = "not connected yet"
        """Why it is open, "" if it is closed."""
        self.opened_at: float | None = None
        """Clock seconds of the failure that opened it; None if it has never been closed."""
        self.num_opened = 0
        """How often a failure has opened it."""
        self._probe_at = 0.0

    def failed(self, reason: str, now: float) -> bool:
        """Note a failure; return whether it opened the breaker."""
        self._probe_at = now + self._retry_s
        was_open, self.is_open, self.reason = self.is_open, True, reason
        if was_open:
            return False
        self.opened_at = now
        self.num_opened += 1
        return True

    def succeeded(self) -> bool:
        """Note a success; return whether it closed the breaker."""
        was_open, self.is_open, self.reason = self.is_open, False, ""
        return was_open

    def probe_in_s(self, now: float) -> float:
        """Return the seconds until the next probe is due, 0 for now."""
        return max(0.0, self._probe_at - now)
