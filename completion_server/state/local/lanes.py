"""Newest wins between the front ends of one server, without Redis.

A front end decides about its own requests at once, as if it were alone. Then it notes the request in the table that all
share, and finds there at which other places a request of the lane may live: those get a message. A receiver whose
newest request of the lane is older ends it; one whose own is newer answers with that one.

A user whose requests come to one front end costs no message. No message is needed for the outcome, only for its speed:
each front end looks at its requests that live longer than `_REPEAT_S` again and again, as if they had just come. So
lost and late messages, dead front ends and new ones in their places do no harm for longer than that.

A stamp is the machine's time, or with Redis the time on Redis's clock, in microseconds; and it is larger than all that
were given in this server before, so that its requests have one order whatever its front ends know of Redis's clock.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from completion_server.core.clock import Clock
from completion_server.state.lanes import LATE_S, Announcement, KnownLanes
from completion_server.state.local.bus import Bus, Kind
from completion_server.state.local.table import LaneTable

_REPEAT_S = 0.25
_US = 1_000_000
_REQUEST = struct.Struct("<QQH")
"""Sequence, stamp and the length of the lane, which follows; then the session to the end."""


@dataclass(slots=True)
class LocalLaneStats:
    """Counters of one front end."""

    num_sent: int = 0
    num_received: int = 0
    num_overtaken: int = 0
    """Messages that told of a newer request of a lane that was served here."""


class LocalLanes:
    """Keeps one live request for each lane over all front ends of a server."""

    def __init__(
        self,
        bus: Bus,
        table: LaneTable,
        clock: Clock,
        *,
        supersede: Callable[[str, int], None],
        live: Callable[[], Iterable[tuple[Announcement, float]]],
    ) -> None:
        """Begin at a place whose column is empty. `clock` is the machine's, and the same in all front ends.

        `supersede(lane, stamp)` ends this front end's requests of a lane that are older than the stamp. `live()`
        returns its live requests, each with the clock seconds at which it arrived.
        """
        self._bus = bus
        self._table = table
        self._clock = clock
        self._supersede = supersede
        self._live = live
        self._known = KnownLanes()
        self.stats = LocalLaneStats()
        table.clear(bus.place)
        bus.on(Kind.LANE, self._receive)

    def stamp(self, at_least: int = 0) -> int:
        """Return the stamp of a request that is accepted now. `at_least` is its time on Redis's clock, if known."""
        return self._table.stamp(max(at_least, int(self._clock.now() * _US)))

    def accepted(self, request: Announcement) -> None:
        """Take notice of an accepted request, and tell the front ends that may have an older one. Returns at once."""
        self._known.accept(request.lane, request)
        self._announce(request)

    def announce_old(self) -> None:
        """Announce live requests older than `_REPEAT_S` again."""
        now = self._clock.now()
        for request, arrived_at in self._live():
            if arrived_at <= now - _REPEAT_S:
                self._announce(request)

    async def run(self) -> None:
        """Announce long-lived requests again until cancelled."""
        while True:
            await asyncio.sleep(_REPEAT_S)
            self.announce_old()

    def _announce(self, request: Announcement) -> None:
        now = self._clock.now()
        for place in self._table.enter(request.lane, int(now * _US), int((now - LATE_S) * _US)):
            self._tell(place, request)

    def _tell(self, place: int, request: Announcement) -> None:
        lane = request.lane.encode()
        head = _REQUEST.pack(request.sequence, request.stamp, len(lane))
        self.stats.num_sent += self._bus.send(place, Kind.LANE, head + lane + request.session.encode())

    def _receive(self, sender: int, payload: bytes) -> None:
        """Take a message of another front end: it has a request of a lane that may have been served here."""
        self.stats.num_received += 1
        sequence, stamp, size = _REQUEST.unpack_from(payload)
        lane, session = payload[_REQUEST.size :][:size].decode(), payload[_REQUEST.size + size :].decode()
        theirs = Announcement(lane, session, sequence, stamp)
        known = self._known.get(lane)
        if known is None:
            return
        if known.newest.is_newer_than(theirs):
            self._tell(sender, known.newest)
        else:
            self.stats.num_overtaken += 1
            self._supersede(lane, max(stamp, known.newest.stamp + 1))
