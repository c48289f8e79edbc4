"""This replica's shares of limits that replicas share. Pure.

1. A replica reports how much is asked of a key and what it took, and gets a share of the limit in proportion to that.
2. It has this share of the rate, and of the burst less what all replicas took and the rate has not filled again.
3. A key that is new here begins with the share 1 / replicas. The shares of others never make a reported one smaller.
4. A key is reported once a second while much is taken of it, else at the interval of its limit, until nobody asks.
5. Without Redis the last share stays.

The bound: the shares of a key come to 1, and to less than 2 while they change. So in any window all replicas together
take at most the rate times its length, three times the burst, three seconds of the rate, and one for each replica. What
they took too much is not taken again. The same holds for open sessions, which have no rate. A replica that Redis does
not answer adds its share of the rate and the burst, at most the whole, when the others no longer know of it.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from completion_server.limits.local import ROUNDING
from completion_server.limits.replicas import Replicas

RATE_INTERVAL_S = 3.0
SESSIONS_INTERVAL_S = 20.0
NUM_KEPT = 3
"""Redis forgets a share that is not reported for this number of intervals."""
_BUSY_INTERVAL_S = 1.0
_BUSY_PART = 0.25
"""A key is busy if this part of what may be taken at once was taken since its last report."""
_IDLE_S = 2.0
_MAX_DEBT_S = 60.0


@dataclass(frozen=True, slots=True)
class DemandReport:
    """A message about one key. `settle` takes the share and the units left of the burst; None if there is no reply."""

    kind: str
    key: str
    arguments: tuple[float, ...]
    """Those of `SHARE` in state/limit_reports.py."""
    settle: Callable[[tuple[float, float] | None], None]


@dataclass(slots=True)
class Share:
    """This replica's share of one key."""

    part: float
    level: float
    """Units that may be taken now; negative after a charge of more than that."""
    at: float
    """When the level was true."""
    reported_at: float
    asked_at: float
    demand: float = 1.0
    """How often the key was asked for; for sessions, how often it was refused."""
    taken: float = 0.0
    """Units since the last report, less those that its part of the rate has filled again."""
    kept: float = 0.0
    """Units of the level that are charged already: what a small part saves for its next unit."""
    num_open: int = 0
    is_reported: bool = False
    """Whether Redis was told of it, and may know the part."""
    is_known: bool = False
    """Whether Redis knows the part."""


class SharedLimiter(ABC):
    """This replica's shares of one limit."""

    def __init__(
        self, kind: str, units_per_s: float, burst: float, max_debt: float, interval_s: float, replicas: Replicas
    ) -> None:
        """Begin without a key. `kind` names the limit, in at most 16 letters."""
        self._kind = kind
        self._units_per_s = units_per_s
        self._burst = burst
        self._max_debt = max_debt
        self._interval_s = interval_s
        self._replicas = replicas
        self._shares: OrderedDict[str, Share] = OrderedDict()
        """The key that was not reported for the longest time comes first."""
        self._busy: dict[str, None] = {}

    def __len__(self) -> int:
        """Return the number of keys of which this replica has a share."""
        return len(self._shares)

    @abstractmethod
    def _demand(self, share: Share, now: float, /) -> float:
        """Return what is asked of a share; 0 ends it."""

    @property
    def _new_part(self) -> float:
        """The share with which a key begins."""
        return 1 / self._replicas.num_alive

    def _of(self, key: str, now: float) -> Share:
        """Return the share of a key, which may be new."""
        if key not in self._shares:
            part = self._new_part
            self._shares[key] = Share(part, self._depth(part), now, now - _BUSY_INTERVAL_S, now)
        return self._shares[key]

    def _depth(self, part: float) -> float:
        """Return the units that a share allows at once."""
        return max(1.0, self._burst * part)

    def _take(self, key: str, share: Share, units: float) -> None:
        """Count units that were taken, to report them soon if they are many."""
        from_kept = min(share.kept, max(0.0, units))
        share.kept, share.taken = share.kept - from_kept, share.taken + units - from_kept
        if abs(share.taken) >= _BUSY_PART * self._depth(share.part):
            self._busy[key] = None

    def reports(self, now: float) -> Iterator[DemandReport]:
        """Yield the messages that are due. Each must be settled."""
        due = {key: None for key in self._busy if now - self._shares[key].reported_at >= _BUSY_INTERVAL_S}
        for key, share in self._shares.items():
            if now - share.reported_at < self._interval_s:
                break
            due[key] = None
        for key in due:
            yield self._report(key, self._demand(self._shares[key], now), now)

    def give_back(self) -> Iterator[DemandReport]:
        """Yield the messages that leave all shares to the other replicas."""
        return (self._report(key, 0.0, 0.0) for key in tuple(self._shares))

    def _forget(self, key: str) -> Share:
        self._busy.pop(key, None)
        return self._shares.pop(key)

    def _report(self, key: str, demand: float, now: float) -> DemandReport:
        share = self._forget(key)
        if demand:
            self._shares[key], share.is_reported = share, True
        else:
            share.kept, share.taken = 0.0, share.taken - share.kept
        share.reported_at, taken, share.taken = now, share.taken, 0.0
        charge = taken if self._units_per_s else 0.0
        arguments = (
            NUM_KEPT * self._interval_s, self._units_per_s, self._burst, self._burst + self._max_debt, charge,
            share.num_open, demand, self._new_part,
        )  # fmt: skip
        return DemandReport(self._kind, key, arguments, partial(self._settle, key, share, taken))

    def _settle(self, key: str, share: Share, taken: float, reply: tuple[float, float] | None) -> None:
        if reply is None:
            share.taken += taken
            if key in self._shares:
                self._busy[key] = None
        else:
            share.is_known, (share.part, left) = True, reply
            level = share.part * left - share.taken
            saved = min(1.0, share.level) if self._units_per_s and left > -1 else 0.0
            # Otherwise a part of less than one unit between two reports would never come to a unit.
            kept = max(0.0, saved - level) if saved > 0 else 0.0
            share.kept, share.taken = kept, share.taken + kept - share.kept
            share.level = min(self._depth(share.part), level + kept)


class SharedRates(SharedLimiter):
    """Limits the rate of each key over all replicas, and allows bursts. As `RateLimiter` otherwise."""

    def __init__(self, kind: str, units_per_s: float, burst: float, max_wait_s: float, replicas: Replicas) -> None:
        """Allow `burst` units at once and `units_per_s` in the long run; a key waits at most `max_wait_s`."""
        self._max_wait_s = max_wait_s
        max_debt = min(max_wait_s, _MAX_DEBT_S) * units_per_s
        super().__init__(kind, units_per_s, burst, max_debt, RATE_INTERVAL_S, replicas)

    def delay_s(self, key: str, now: float) -> float:
        """Return the seconds after which the key may have a unit, 0 for now. Takes none."""
        share = self._shares.get(key)
        if share is None:
            return 0.0
        self._fill(share, now)
        share.asked_at, share.demand = now, share.demand + 1
        missing = 1 - share.level
        if missing <= ROUNDING:
            return 0.0
        self._busy[key] = None
        return min(missing / (self._units_per_s * share.part), self._max_wait_s)

    def charge(self, key: str, now: float, units: float = 1.0) -> None:
        """Take units, even if fewer are left; a negative number gives them back."""
        if not self._units_per_s:
            return
        share = self._of(key, now)
        self._fill(share, now)
        share.level = min(self._depth(share.part), max(share.level - units, -self._max_debt * share.part))
        self._take(key, share, units)

    def _fill(self, share: Share, now: float) -> None:
        elapsed_s, share.at = now - share.at, now
        missing = max(0.0, self._depth(share.part) - share.level)
        gain = min(missing, elapsed_s * self._units_per_s * share.part)
        share.level += gain
        # Redis does not fill the part that it knows. Without Redis all parts are filled here.
        share.taken -= gain if share.is_known or not self._replicas.is_shared else 0.0
        share.demand *= 0.5**elapsed_s

    def _demand(self, share: Share, now: float) -> float:
        """Return how often the key was asked for lately; 0 if it was not, and would begin with no more than it has."""
        self._fill(share, now)
        is_full = share.level >= self._depth(min(share.part, self._new_part))
        return 0.0 if is_full and now - share.asked_at >= _IDLE_S else max(share.demand, ROUNDING)


class SharedSessions(SharedLimiter):
    """Limits the sessions of each key over all replicas. As `LocalSessions` otherwise."""

    def __init__(self, kind: str, limit: int, replicas: Replicas) -> None:
        """Allow `limit` sessions of each key; 0 sets no limit."""
        self._limit = limit
        super().__init__(kind, 0.0, limit, 0.0, SESSIONS_INTERVAL_S, replicas)

    def num_open(self, key: str) -> int:
        """Return the number of the key's open sessions on this replica."""
        return self._shares[key].num_open if key in self._shares else 0

    def is_full(self, key: str) -> bool:
        """Return whether the key may not open another session. Then more are asked for."""
        share = self._shares.get(key)
        if share is None or share.level > ROUNDING:
            return False
        share.demand += 1
        self._busy[key] = None
        return True

    def more_in_s(self, key: str) -> float | None:
        """Return the seconds after which a full key may have more sessions; None if it has as many as are allowed."""
        is_limited = self.num_open(key) >= self._limit or not self._replicas.is_shared
        return None if is_limited else _BUSY_INTERVAL_S

    def enter(self, key: str) -> None:
        """Count another session."""
        if self._limit:
            self._count(key, 1)

    def leave(self, key: str) -> None:
        """Count a session no longer."""
        if not self._limit:
            return
        share = self._count(key, -1)
        if not share.num_open and share.is_reported:
            self._busy[key] = None
        elif not share.num_open:
            self._forget(key)

    def _count(self, key: str, num: int) -> Share:
        share = self._of(key, self._replicas.clock.now())
        share.num_open, share.level = share.num_open + num, share.level - num
        self._take(key, share, num)
        return share

    def _demand(self, share: Share, _now: float) -> float:
        num_refused, share.demand = share.demand, 0.0
        return share.num_open + num_refused if share.num_open else 0.0
