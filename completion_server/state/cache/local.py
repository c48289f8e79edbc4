"""Level 1: completions in the memory of the process, bounded in bytes and in time. Pure.

Anchors are dropped whole, the least recently used first. A completion is not served after its time, and is freed at
most once that time after: anchors are in the order of their last use, which is at least as late as their completions.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from sys import getsizeof

from completion_server.state.cache.entry import Entry, Terms
from completion_server.state.cache.keys import Anchor

MAX_ENTRIES = 8
"""Completions of one anchor, each for another tail; the oldest goes first."""

_ANCHOR_BYTES = 300
"""Memory of an anchor without its name and its completions: its places in two dictionaries, one of them its own."""
_ENTRY_BYTES = 300
"""Memory of a completion without its texts: the objects, their numbers, and a place in the anchor's dictionary."""


@dataclass(frozen=True, slots=True)
class _Kept:
    entry: Entry
    expires_at: float


class LocalCache:
    """Kept completions by anchor. All times are clock seconds."""

    def __init__(self, max_bytes: int, ttl_s: float) -> None:
        """Keep completions for `ttl_s`, in at most `max_bytes`."""
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._anchors: OrderedDict[bytes, dict[str, _Kept]] = OrderedDict()
        """By name; in it by tail, the oldest completion first."""
        self._num_bytes = 0
        self._num_entries = 0

    @property
    def num_bytes(self) -> int:
        """Estimated memory of all that is kept."""
        return self._num_bytes

    @property
    def num_entries(self) -> int:
        """Completions that are kept, those whose time is over included."""
        return self._num_entries

    def get(self, prefix: str, anchors: Sequence[Anchor], terms: Terms, now: float) -> Entry | None:
        """Return what a kept completion has left for a request; see `Entry.after`.

        Of several completions the one that was computed nearest to the cursor is returned: it has seen the most text.
        `anchors` are those of `prefix`, the nearest to the cursor first.
        """
        for anchor in anchors:
            kept = self._anchors.get(anchor.name)
            if kept is None:
                continue
            tail = prefix[anchor.offset :]
            lefts = (
                (len(each.entry.tail), left)
                for each in kept.values()
                if now < each.expires_at and (left := each.entry.after(tail, terms)) is not None
            )
            best = max(lefts, key=lambda pair: pair[0], default=None)
            if best is not None:
                self._anchors.move_to_end(anchor.name)
                return best[1]
        return None

    def put(self, name: bytes, entry: Entry, now: float) -> bool:
        """Keep a completion of the anchor `name`. Return False if the same one is kept already."""
        self.sweep(now)
        kept = self._anchors.get(name)
        if kept is None:
            kept = self._anchors[name] = {}
            self._num_bytes += bytes_of_anchor(name)
        self._anchors.move_to_end(name)
        older = kept.pop(entry.tail, None)
        if older is not None:
            self._forget(older)
        kept[entry.tail] = _Kept(entry, now + self._ttl_s)
        self._num_bytes += bytes_of_entry(entry)
        self._num_entries += 1
        if len(kept) > MAX_ENTRIES:
            self._forget(kept.pop(next(iter(kept))))
        while self._num_bytes > self._max_bytes:
            self._drop_first()
        return older is None or now >= older.expires_at or older.entry.text != entry.text

    def sweep(self, now: float) -> None:
        """Drop the least recently used anchors, as long as the time of all their completions is over."""
        while self._anchors:
            kept = next(iter(self._anchors.values()))
            if any(now < each.expires_at for each in kept.values()):
                return
            self._drop_first()

    def _drop_first(self) -> None:
        name, kept = self._anchors.popitem(last=False)
        self._num_bytes -= bytes_of_anchor(name)
        for each in kept.values():
            self._forget(each)

    def _forget(self, kept: _Kept) -> None:
        self._num_bytes -= bytes_of_entry(kept.entry)
        self._num_entries -= 1


def bytes_of_anchor(name: bytes) -> int:
    """Return the memory that an anchor takes without its completions."""
    return _ANCHOR_BYTES + getsizeof(name)


def bytes_of_entry(entry: Entry) -> int:
    """Return the memory that a completion takes."""
    return _ENTRY_BYTES + getsizeof(entry.tail) + getsizeof(entry.text)
