"""The replicas that share limits, as the last heartbeat found them. Pure."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from completion_server.core.clock import Clock

logger = logging.getLogger(__name__)

ALIVE_S = 3.0
"""A replica is alive for this time after its heartbeat, and shares limits for this time after the answer to it."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica as a heartbeat found it."""

    id: str
    process: str
    """A token that no other process has."""
    age_s: float
    """Seconds since its last heartbeat, on Redis's clock."""

    @property
    def is_alive(self) -> bool:
        """Whether it sent a heartbeat lately."""
        return self.age_s < ALIVE_S


class Replicas:
    """All replicas, also this one."""

    def __init__(self, own: Replica, clock: Clock, assumed_replicas: int) -> None:
        """Begin as one of `assumed_replicas`, which is their number until Redis answers."""
        self.own = own
        self.num_alive = assumed_replicas
        """Replicas that were alive when Redis answered last."""
        self.has_duplicate_id = False
        """Whether another living process had this replica's id then."""
        self.clock = clock
        self._found: tuple[Replica, ...] = ()
        self._found_at = -math.inf

    @property
    def seen(self) -> tuple[Replica, ...]:
        """The replicas that the last answer had, older by the time since then."""
        elapsed_s = self.clock.now() - self._found_at
        return tuple(replace(each, age_s=each.age_s + elapsed_s) for each in self._found)

    @property
    def is_shared(self) -> bool:
        """Whether Redis answers, so that limits are shared."""
        return self.clock.now() - self._found_at < ALIVE_S

    def find(self, found: Sequence[Replica]) -> None:
        """Take the replicas that sent heartbeats before this one did."""
        others = [each for each in found if each.id != self.own.id]
        # The first heartbeat after a restart finds that of the process before.
        is_duplicate = bool(self._found) and any(
            each.is_alive and each.process != self.own.process for each in found if each.id == self.own.id
        )
        if is_duplicate and not self.has_duplicate_id:
            logger.error(
                "another process has the replica id %r, too: shared limits and newest-wins do not hold for it; "
                "set another redis.replica_id",
                self.own.id,
            )
        self.has_duplicate_id = is_duplicate
        self._found, self._found_at = (self.own, *others), self.clock.now()
        self.num_alive = sum(each.is_alive for each in self._found)
