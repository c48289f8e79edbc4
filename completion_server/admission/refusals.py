"""Limits the bytes of refused requests of each connection. Pure.

A refused message costs the server and not its sender, so its bytes are charged to the connection that sent it.
"""

from collections.abc import Hashable

from completion_server.limits.local import RateLimiter

LEAST_CHARGE_BYTES = 16 * 1024
"""Minimum charge of a refusal, for its costs besides the bytes."""
_MAX_WAIT_S = 60.0


class RefusalBudget:
    """Charges refused bytes to connections."""

    def __init__(self, bytes_per_s: float, burst_bytes: int) -> None:
        """Allow each connection `burst_bytes` at once and `bytes_per_s` in the long run; a rate of 0 sets no limit."""
        self._limiter = RateLimiter(bytes_per_s, burst_bytes + 1, _MAX_WAIT_S)

    @property
    def num_known(self) -> int:
        """Number of connections whose bucket is remembered."""
        return self._limiter.num_known

    def charge(self, connection: Hashable, num_bytes: int, now: float) -> None:
        """Charge a refused message."""
        self._limiter.charge(connection, now, max(num_bytes, LEAST_CHARGE_BYTES))

    def wait_s(self, connection: Hashable, now: float) -> float:
        """Return the seconds after which a connection may send again, 0 for now."""
        return self._limiter.delay_s(connection, now)
