"""Limits the bytes of refused requests of each connection. Pure.

A message that is received and then refused costs the server only, so it is charged to the connection that it came on.
"""

from collections.abc import Hashable

from completion_server.admission.rate_limiter import RateLimiter

LEAST_CHARGE_BYTES = 16 * 1024
"""A refusal has costs beside its bytes."""
_MAX_WAIT_S = 60.0


class RefusalBudget:
    """Charges connections for what was refused."""

    def __init__(self, bytes_per_s: float, burst_bytes: int) -> None:
        """Allow each connection `burst_bytes` at once and then `bytes_per_s`; a rate of 0 allows everything."""
        self._limiter = RateLimiter(bytes_per_s, burst_bytes + 1, _MAX_WAIT_S)

    @property
    def num_known(self) -> int:
        """Connections whose bucket is remembered."""
        return self._limiter.num_known

    def charge(self, connection: Hashable, num_bytes: int, now: float) -> None:
        """Take a refused message into account."""
        self._limiter.charge(connection, now, max(num_bytes, LEAST_CHARGE_BYTES))

    def wait_s(self, connection: Hashable, now: float) -> float:
        """Return in how many seconds a connection may send again, 0 for now."""
        return self._limiter.delay_s(connection, now)
