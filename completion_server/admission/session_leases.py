"""A limit of open sessions that replicas share: each leases part of a key's sessions ahead of need. Pure.

Redis holds the leased number of each replica. A key that is new here may open half of a replica's equal share at once,
without a grant. So all editors can reconnect after a rollout.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from completion_server.admission.limits import LeaseRequest
from completion_server.admission.standing import Phase, Standing
from completion_server.core.clock import Clock

LEASE_TTL_S = 60.0
"""Redis forgets the sessions of a replica that does not renew its lease for this time."""
_RENEW_S = 20.0
_RETRY_S = 0.5
_SCAN_S = 1.0
_CHUNKS = 4
"""A chunk is this part of a replica's equal share."""
_ROUNDING = 1e-6
_ROUND_TRIP_S = 0.1
"""A reply of Redis has usually come after this time."""


@dataclass(slots=True)
class _Lease:
    """This replica's sessions of one key."""

    num_open: int
    num_leased: int
    renew_at: float
    """When the lease must be renewed in Redis."""
    retry_at: float = -math.inf
    is_requesting: bool = False
    num_refused: int = 0
    """Sessions that were refused since Redis was asked last."""


class LeasedSessions:
    """Limits the sessions of each key over all replicas. Implements `SessionLimiter`."""

    def __init__(self, kind: str, limit: int, standing: Standing, clock: Clock) -> None:
        """Allow `limit` sessions of each key; 0 sets no limit."""
        self._kind = kind
        self._limit = limit
        self._standing = standing
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._waiting: dict[str, None] = {}
        """Keys about which Redis must be asked."""
        self._closed: dict[str, None] = {}
        """Keys whose lease must be given back."""
        self._next_scan_at = -math.inf

    def __len__(self) -> int:
        """Return the number of keys with open sessions."""
        return len(self._leases)

    def num_open(self, key: str) -> int:
        """Return the number of the key's open sessions on this replica."""
        lease = self._leases.get(key)
        return lease.num_open if lease is not None else 0

    def is_full(self, key: str) -> bool:
        """Return whether the key may not open another session. Then Redis is asked for more."""
        if not self._limit:
            return False
        lease = self._leases.get(key)
        allowed = self.advance if lease is None else lease.num_leased
        if self._clock.now() >= self._standing.alone_from:
            allowed = max(1, allowed, int(self._limit * self._standing.share + _ROUNDING))
        if lease is None or lease.num_open < allowed:
            return False
        lease.num_refused += 1
        self._waiting[key] = None
        return True

    def lease_wait_s(self, key: str) -> float | None:
        """Return the seconds after which a full key may have more sessions; None if it has as many as are allowed."""
        lease, now = self._leases.get(key), self._clock.now()
        if lease is None or lease.num_open >= self._limit or now >= self._standing.alone_from:
            return None
        return max(_ROUND_TRIP_S, lease.retry_at - now)

    def enter(self, key: str) -> None:
        """Count another session."""
        if not self._limit:
            return
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = _Lease(0, self.advance, self._clock.now() + _RENEW_S)
            self._waiting[key] = None
        lease.num_open += 1
        if lease.num_leased - lease.num_open <= self.chunk // 2:
            self._waiting[key] = None

    def leave(self, key: str) -> None:
        """Count a session no longer."""
        if not self._limit:
            return
        lease = self._leases[key]
        lease.num_open -= 1
        if not lease.num_open:
            del self._leases[key]
            self._waiting.pop(key, None)
            self._closed[key] = None
        elif lease.num_leased - lease.num_open > 2 * self.chunk:
            self._waiting[key] = None

    def requests(self, now: float) -> list[LeaseRequest]:
        """Return the messages to send to Redis. Each must be settled, with its reply or with None."""
        phase = self._standing.phase(now)
        if phase is Phase.ALONE:
            self._closed.clear()  # Redis forgets these leases by itself
        if phase is not Phase.SHARED:
            return []
        self._scan(now)
        return self.give_back(now) + [self._request(key, self._leases[key], now) for key in self._due(now)]

    def give_back(self, now: float) -> list[LeaseRequest]:
        """Return the messages that give back the leases of keys without open sessions."""
        closed = [key for key in self._closed if key not in self._leases]
        self._closed.clear()
        return [LeaseRequest("sessions", self._kind, key, (0, 0, self._limit, LEASE_TTL_S), _ignore) for key in closed]

    @property
    def advance(self) -> int:
        """The sessions that a new key may open before Redis has granted any."""
        return max(1, self._limit // (2 * self._standing.num_replicas))

    @property
    def chunk(self) -> int:
        """The sessions that are leased ahead of need."""
        return max(1, self._limit // (_CHUNKS * self._standing.num_replicas))

    def _scan(self, now: float) -> None:
        """Find the leases that must be renewed."""
        if now >= self._next_scan_at:
            self._next_scan_at = now + _SCAN_S
            self._waiting.update((key, None) for key, lease in self._leases.items() if now >= lease.renew_at)

    def _due(self, now: float) -> list[str]:
        leases = self._leases
        return [key for key in self._waiting if not leases[key].is_requesting and now >= leases[key].retry_at]

    def _request(self, key: str, lease: _Lease, now: float) -> LeaseRequest:
        """Ask for one chunk more than are open and were refused; this also renews the lease."""
        self._waiting.pop(key, None)
        lease.is_requesting = True
        want = min(self._limit, lease.num_open + self.chunk + lease.num_refused)
        lease.num_refused = 0
        limit = max(1, int(self._limit * self._standing.shared_part + _ROUNDING))
        settle = partial(self._settle, key, lease, want)
        return LeaseRequest("sessions", self._kind, key, (lease.num_open, want, limit, LEASE_TTL_S), settle)

    def _settle(self, key: str, lease: _Lease, want: int, reply: Sequence[float] | None, now: float) -> None:
        lease.is_requesting = False
        if self._leases.get(key) is not lease:
            return
        if reply is None:
            lease.retry_at = now + _RETRY_S
            self._waiting[key] = None
            return
        lease.num_leased = int(reply[0])
        lease.renew_at = now + _RENEW_S
        lease.retry_at = now + (_RETRY_S if lease.num_leased < want else 0.0)
        if lease.num_open >= lease.num_leased:
            self._waiting[key] = None


def _ignore(_reply: Sequence[float] | None, _now: float) -> None:
    """Take the reply to a message that gave back a lease."""
