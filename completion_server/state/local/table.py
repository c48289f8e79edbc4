"""Where requests of a lane may live: a table of times in memory that the front ends of a server share.

A row stands for all lanes with one hash, a column for a place. Each cell holds when that place had a live request of
such a lane last. Beside the rows each place has the newest stamp that it gave. A place writes only its own column and
its own stamp.

There is no lock. A request writes its cell before it reads those of others, so of two that come at once to two places,
one at least sees the other, unless the processor delays a write beyond a later read. The look at old requests, in
lanes.py, finds what was missed.
"""

from zlib import crc32

NUM_ROWS = 1 << 16
"""Of a thousand requests a second, a place has 5,000 in the time for which cells count: 8% of the rows. A request whose
row another lane has sends one message more."""
_WORD = 8


class LaneTable:
    """The table, as one place uses it."""

    def __init__(self, words: memoryview, place: int, num_places: int) -> None:
        """Use whole numbers that all places share, as many as `num_words` says."""
        self._words = words
        self._place = place
        self._num_places = num_places

    def stamp(self, at_least: int) -> int:
        """Return a stamp larger than all that any place gave before. No two places give the same one."""
        num = self._num_places
        stamp = max(at_least, max(self._words[:num]) + 1)
        stamp += (self._place - stamp) % num
        self._words[self._place] = stamp
        return stamp

    def enter(self, lane: str, now_us: int, since_us: int) -> list[int]:
        """Note a live request of a lane; return the other places that noted one since a time."""
        num = self._num_places
        begin = (crc32(lane.encode()) % NUM_ROWS + 1) * num
        self._words[begin + self._place] = now_us
        cells = self._words[begin : begin + num].tolist()
        return [place for place, at_us in enumerate(cells) if at_us > since_us and place != self._place]

    def clear(self, place: int) -> None:
        """Forget what a process noted that had a place before. Its newest stamp stays."""
        empty = memoryview(bytes(NUM_ROWS * _WORD)).cast("q")
        self._words[self._num_places + place :: self._num_places] = empty


def num_words(num_places: int) -> int:
    """Return the size of a table."""
    return (NUM_ROWS + 1) * num_places
