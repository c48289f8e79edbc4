"""The ledger: makes the limiters that lease from Redis, and collects what they have to tell it. Pure."""

import math
import random
from collections.abc import Callable, Iterator

from completion_server.admission.leases import LeasedLimiter
from completion_server.admission.limits import LeaseRequest, Limiter, SessionLimiter
from completion_server.admission.session_leases import LeasedSessions
from completion_server.admission.standing import Heartbeat, Phase, Standing
from completion_server.core.clock import Clock

_START_S = 3.0
"""A process that starts counts as alive for this time, if it had the same id before."""


class Ledger:
    """The limits that this replica shares with others. Implements `Limiters`.

    Whoever talks to Redis reports heartbeats to `confirm`, and sends `requests` several times a second.
    """

    def __init__(self, clock: Clock, assumed_replicas: int = 1, draw: Callable[[], float] = random.random) -> None:
        """Begin as one of `assumed_replicas`. `draw` returns random numbers from 0 to 1."""
        self._draw = draw
        self._clock = clock
        self._standing = Standing(assumed_replicas, clock.now() + _START_S, clock.now())
        self._rates: list[LeasedLimiter] = []
        self._sessions: list[LeasedSessions] = []

    def rate(self, kind: str, units_per_s: float, burst: float, max_wait_s: float = math.inf) -> Limiter:
        """Return a limiter of rates."""
        self._rates.append(LeasedLimiter(kind, units_per_s, burst, max_wait_s, self._standing, self._draw))
        return self._rates[-1]

    def sessions(self, kind: str, limit: int) -> SessionLimiter:
        """Return a limiter of open sessions."""
        self._sessions.append(LeasedSessions(kind, limit, self._standing, self._clock))
        return self._sessions[-1]

    @property
    def num_leases(self) -> int:
        """Number of keys of which this replica holds units or sessions."""
        return sum(each.num_known for each in self._rates) + sum(map(len, self._sessions))

    @property
    def phase(self) -> Phase:
        """How this replica decides about shared limits now."""
        return self._standing.phase(self._clock.now())

    @property
    def num_replicas(self) -> int:
        """Replicas among which the limits are divided while Redis does not answer."""
        return self._standing.num_replicas

    def confirm(
        self, *, received_at: float, fresh_until: float, alone_from: float, budget_s: float, num_replicas: int,
        num_alive: int,
    ) -> None:  # fmt: skip
        """Take notice of a heartbeat that Redis answered, see `Heartbeat`."""
        self._standing.confirm(Heartbeat(received_at, fresh_until, alone_from, budget_s, num_replicas, num_alive))

    def requests(self, now: float) -> list[LeaseRequest]:
        """Return the messages to send to Redis. Each must be settled, with its reply or with None."""
        return [request for limiter in self._limiters for request in limiter.requests(now)]

    def give_back(self, now: float) -> list[LeaseRequest]:
        """Return the messages that give back all units, when this replica stops."""
        return [request for limiter in self._limiters for request in limiter.give_back(now)]

    @property
    def _limiters(self) -> Iterator[LeasedLimiter | LeasedSessions]:
        yield from self._rates
        yield from self._sessions
