"""The time limits of a Session stream."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """The time limits of a stream, in seconds."""

    first_request_s: float
    """From its start to its first message."""
    idle_s: float
    """From one message to the next."""
    max_age_s: float
    stall_timeout_s: float
    """How long a write may block."""

    def end(self, opened_at: float, received_at: float | None, *, is_busy: bool) -> tuple[float, str]:
        """Return the time at which a stream ends if it gets no further message, and the reason.

        `received_at` is the time of its last message, None if there was none. A busy stream, which has open requests,
        is not idle.
        """
        ends = [(opened_at + self.max_age_s, f"it is {self.max_age_s:.3g} s old")]
        if received_at is None:
            reason = f"no request came within {self.first_request_s:g} s"
            ends.append((opened_at + self.first_request_s, reason))
        elif not is_busy:
            ends.append((received_at + self.idle_s, f"no message for {self.idle_s:g} s"))
        return min(ends)
