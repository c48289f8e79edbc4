"""Remembers the lanes that a replica served recently. Pure; all times are seconds of the clock."""

from collections import OrderedDict
from dataclasses import dataclass

HELD_S = 1.0
"""Seconds after a confirmed announcement in which further requests of the lane need none. If another replica takes the
lane meanwhile, it sends a message."""
KEPT_S = 60.0
"""Seconds for which Redis keeps the newest request of a lane after its last announcement, and for which a replica
remembers that another replica served the lane."""
LATE_S = 5.0
"""Longest network delay of a request, in seconds. A lower sequence that arrives later is a restarted editor's."""
_MAX_KNOWN = 100_000
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Announcement:
    """A request that a replica has accepted."""

    lane: str
    session: str
    sequence: int
    stamp: int

    def is_newer_than(self, other: "Announcement") -> bool:
        """Return whether this is the newer one of two requests of a lane, as the script in Redis decides."""
        is_late = abs(self.stamp - other.stamp) < LATE_S * _US
        if self.session == other.session and self.sequence != other.sequence and is_late:
            return self.sequence > other.sequence
        return self.stamp >= other.stamp


@dataclass(slots=True)
class KnownLane:
    """One lane. Until Redis answers, the replica assumes that another replica may have served it."""

    newest: Announcement
    """This replica's own newest request."""
    confirmed_at: float = float("-inf")
    """Time at which the last confirmed announcement was sent; minus infinity after another replica took the lane."""
    moved_at: float = float("-inf")
    """Time of the last evidence that another replica served the lane."""

    def is_held(self, now: float) -> bool:
        """Return whether the next request needs no announcement."""
        return now < self.confirmed_at + HELD_S

    def may_be_elsewhere(self, now: float) -> bool:
        """Return whether another replica may have served the lane in the last `KEPT_S`."""
        return now >= self.confirmed_at + KEPT_S or now < self.moved_at + KEPT_S

    def confirm(self, sent_at: float, *, was_elsewhere: bool) -> None:
        """Note that Redis confirmed an announcement; `was_elsewhere` if another replica had the previous one."""
        self.confirmed_at = sent_at
        if was_elsewhere:
            self.moved_at = sent_at

    def lose(self, now: float) -> None:
        """Note that another replica serves the lane."""
        self.confirmed_at, self.moved_at = float("-inf"), now


class KnownLanes:
    """The lanes of recent requests, by their names in Redis. The least recently used ones are forgotten."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lanes: OrderedDict[str, KnownLane] = OrderedDict()

    def get(self, name: str) -> KnownLane | None:
        """Return a lane, None if it is not known."""
        return self._lanes.get(name)

    def accept(self, name: str, request: Announcement) -> KnownLane:
        """Note the newest request of a lane, and return the lane."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = KnownLane(request)
            if len(self._lanes) > _MAX_KNOWN:
                self._lanes.popitem(last=False)
        else:
            lane.newest = request
            self._lanes.move_to_end(name)
        return lane
