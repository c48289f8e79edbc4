"""Adds up counts of a day over the front ends of a server. Their parent keeps them.

A front end tells its own counts, not what they grew by, so that lost messages do no harm. It learns those of the others
within `_EVERY_S` after a key was asked for; until then the others' later ones are missing.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping

from completion_server.state.local.bus import MAX_PAYLOAD, Bus, Kind
from completion_server.state.local.packing import Reader, pack_text

_EVERY_S = 0.5
_MAX_KEYS = 100_000
_GONE = -1
"""Stands for the front ends that have died."""
_DAY = struct.Struct("<Q")
_COUNT = struct.Struct("<d")


class LocalTotals:
    """The counts of the other front ends. Implements `admission.day_tokens.DayTotals`."""

    def __init__(self, bus: Bus, parent: int, num_front_ends: Callable[[], int]) -> None:
        """Tell a place. `num_front_ends` returns the number of those that live."""
        self._bus = bus
        self._parent = parent
        self._num_front_ends = num_front_ends
        self._day = 0
        self._due: dict[str, float] = {}
        """Own counts to tell, by key."""
        self._others: dict[str, float] = {}
        bus.on(Kind.TOTALS, self._receive)

    @property
    def num_front_ends(self) -> int:
        """Number of living front ends, this one included."""
        return self._num_front_ends()

    def of_others(self, key: str, day: int, own: float) -> float:
        """Take the own count of a key on a day; return that of the others, as far as it is known."""
        if day != self._day:
            self._day = day
            self._due.clear()
            self._others.clear()
        self._due[key] = own
        return self._others.get(key, 0.0)

    async def run(self) -> None:
        """Tell the own counts, and learn those of others, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self.exchange()

    def exchange(self) -> None:
        """Tell the own counts of keys that were asked for. The others' ones come later."""
        due, self._due = self._due, {}
        for payload in _packed(self._day, due):
            self._bus.send(self._parent, Kind.TOTALS, payload)

    def _receive(self, _sender: int, payload: bytes) -> None:
        day, counts = _read(payload)
        if day == self._day:
            if len(self._others) > _MAX_KEYS:
                self._others.clear()  # those in use are learned again
            self._others |= counts


class TotalsKeeper:
    """The counts of all front ends, in the parent."""

    def __init__(self, bus: Bus) -> None:
        """Answer the messages of front ends."""
        self._bus = bus
        self._day = 0
        self._counts: dict[str, dict[int, float]] = {}
        """Those of each place, by key. The oldest key is forgotten first."""
        bus.on(Kind.TOTALS, self._receive)

    def forget(self, place: int) -> None:
        """Keep what a dead front end counted, apart from the next one in its place."""
        for counts in self._counts.values():
            counts[_GONE] = counts.get(_GONE, 0.0) + counts.pop(place, 0.0)

    def _receive(self, sender: int, payload: bytes) -> None:
        day, own = _read(payload)
        if day > self._day:
            self._day = day
            self._counts.clear()
        if day < self._day:
            return
        others = {}
        for key, count in own.items():
            counts = self._counts.setdefault(key, {})
            counts[sender] = count
            others[key] = sum(counts.values()) - count
            if len(self._counts) > _MAX_KEYS:
                del self._counts[next(iter(self._counts))]
        for answer in _packed(day, others):
            self._bus.send(sender, Kind.TOTALS, answer)


def _packed(day: int, counts: Mapping[str, float]) -> list[bytes]:
    """Return the payloads of as few messages as counts fit in."""
    payloads: list[bytes] = []
    for key, count in counts.items():
        entry = pack_text(key) + _COUNT.pack(count)
        if payloads and len(payloads[-1]) + len(entry) <= MAX_PAYLOAD:
            payloads[-1] += entry
        else:
            payloads.append(_DAY.pack(day) + entry)
    return payloads


def _read(payload: bytes) -> tuple[int, dict[str, float]]:
    """Return the day and the counts of a message."""
    (day,) = _DAY.unpack_from(payload)
    reader, counts = Reader(payload, _DAY.size), {}
    while not reader.is_at_end:
        key = reader.text()
        (counts[key],) = reader.numbers(_COUNT)
    return day, counts
