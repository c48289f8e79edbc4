"""Limits the bytes of refused requests of each connection: a token bucket for each, kept as GCRA's one number. Pure.

A message that is received and then refused costs the server only, so it is charged to the connection that it came on.

GCRA: https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm
"""

from collections.abc import Hashable

LEAST_CHARGE_BYTES = 16 * 1024
"""A refusal has costs beside its bytes."""
_MAX_WAIT_S = 60.0
_SWEEP_AFTER = 4096


class RefusalBudget:
    """Charges connections for what was refused."""

    def __init__(self, bytes_per_s: float, burst_bytes: int) -> None:
        """Allow each connection `burst_bytes` at once and then `bytes_per_s`; a rate of 0 allows everything."""
        self._s_per_byte = 1 / bytes_per_s if bytes_per_s else 0.0
        self._burst_s = self._s_per_byte * burst_bytes
        self._full_at: dict[Hashable, float] = {}
        """When the bucket of each connection is full again; a connection without an entry has a full one."""
        self._num_to_sweep = _SWEEP_AFTER

    @property
    def num_known(self) -> int:
        """Connections whose bucket is remembered."""
        return len(self._full_at)

    def charge(self, connection: Hashable, num_bytes: int, now: float) -> None:
        """Take a refused message into account."""
        cost_s = self._s_per_byte * max(num_bytes, LEAST_CHARGE_BYTES)
        full_at = max(self._full_at.get(connection, now), now) + cost_s
        self._full_at[connection] = min(full_at, now + self._burst_s + _MAX_WAIT_S)
        self._sweep(now)

    def wait_s(self, connection: Hashable, now: float) -> float:
        """Return in how many seconds a connection may send again, 0 for now."""
        return max(0.0, self._full_at.get(connection, now) - now - self._burst_s)

    def _sweep(self, now: float) -> None:
        """Forget full buckets now and then: as much work as there were charges, so little for each."""
        self._num_to_sweep -= 1
        if self._num_to_sweep == 0:
            self._full_at = {connection: at for connection, at in self._full_at.items() if at > now}
            self._num_to_sweep = max(_SWEEP_AFTER, len(self._full_at))
