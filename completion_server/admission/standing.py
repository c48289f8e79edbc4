"""The standing of this replica among the replicas that share limits, as its last heartbeat found it. Pure."""

import math
from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """How this replica decides about shared limits."""

    SHARED = "shared"
    """It leases units from Redis."""
    WAITING = "waiting"
    """Redis does not answer. It spends what it has, until the others have counted it out."""
    ALONE = "alone"
    """The others have counted it out. It has its own part of each limit."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a heartbeat in Redis found. Times are clock seconds of this process."""

    received_at: float
    fresh_until: float
    """Until then the figures hold."""
    alone_from: float
    """From then on no other replica counts this one as alive, if no later heartbeat reaches Redis."""
    budget_s: float
    """Time for which budgets have been filled in Redis. It passes more slowly while a replica is cut off."""
    num_replicas: int
    """Replicas that are known, also those that are cut off."""
    num_alive: int


class Standing:
    """The last heartbeat, and what follows from it."""

    def __init__(self, assumed_replicas: int = 1, alone_from: float = -math.inf, started_at: float = -math.inf) -> None:
        """Begin as one of `assumed_replicas`, alone from a time on, if Redis does not answer before."""
        self.num_replicas = assumed_replicas
        self.alone_from = alone_from
        self._started_at = started_at
        self._last: Heartbeat | None = None

    def confirm(self, heartbeat: Heartbeat) -> None:
        """Take notice of a heartbeat that Redis answered."""
        self._last = heartbeat
        self.num_replicas = heartbeat.num_replicas
        self.alone_from = heartbeat.alone_from

    def phase(self, now: float) -> Phase:
        """Return how limits are decided now."""
        if now >= self.alone_from:
            return Phase.ALONE
        return Phase.SHARED if self._last is not None and now < self._last.fresh_until else Phase.WAITING

    @property
    def fill_from(self) -> float:
        """The time from which on this replica may fill its part of each budget by itself, once it is alone.

        A replica that knows no other fills what passed since the last reply: nobody else can have got that from Redis.
        """
        if self.num_replicas > 1:
            return self.alone_from
        return self._started_at if self._last is None else self._last.received_at

    @property
    def share(self) -> float:
        """The part of each limit that this replica has while it is alone."""
        return 1 / self.num_replicas

    @property
    def shared_part(self) -> float:
        """The part of each limit that the replicas share that are not cut off."""
        return self._last.num_alive / self._last.num_replicas if self._last is not None else self.share

    def budget_s(self, now: float) -> float:
        """Return the time for which budgets have been filled in Redis, estimated not too high."""
        if self._last is None:
            return 0.0
        elapsed_s = min(now, self._last.fresh_until) - self._last.received_at
        return self._last.budget_s + max(0.0, elapsed_s) * self.shared_part
