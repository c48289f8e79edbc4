"""The group of a server's front ends, as their parent makes it and as each of them is given it."""

import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from completion_server.core.clock import Clock
from completion_server.core.shared_words import SharedWords
from completion_server.state.local.board import BoardKeeper
from completion_server.state.local.bus import LocalBus
from completion_server.state.local.slots import SlotBoard
from completion_server.state.local.table import LaneTable, num_words
from completion_server.state.local.totals import TotalsKeeper

_SECRET_BYTES = 32
_PREFIX = "completion-server-group-"
_TABLE, _SLOTS = "lanes", "slots"


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """What one front end needs to work with the others. Picklable."""

    folder: str
    place: int
    num_front_ends: int
    """Front ends that usually live. While they are replaced there are more."""
    num_places: int
    secret: bytes
    """Known to the front ends of this server alone, of which each derives the same salts from it."""

    @property
    def name(self) -> str:
        """The name of the front end, which a later one in its place has, too."""
        return front_end_name(self.place)

    @property
    def parent(self) -> int:
        """The parent's place on the bus."""
        return self.num_places

    def bus(self) -> LocalBus:
        """Return the bus at this place."""
        return LocalBus(self.folder, self.place)

    def table(self) -> LaneTable:
        """Return the table of lanes.

        Raises:
            OSError: the parent has closed the group.

        """
        shared = SharedWords(Path(self.folder, _TABLE), num_words(self.num_places), "q")
        return LaneTable(shared.words, self.place, self.num_places)

    def slots(self) -> SlotBoard:
        """Return the board of slots.

        Raises:
            OSError: the parent has closed the group.

        """
        return SlotBoard(Path(self.folder, _SLOTS), self.place, self.num_places)


class LocalParent:
    """Owns the group: its folder, the table of lanes, the boards of slots and of limits, and the counts of the day."""

    def __init__(self, num_front_ends: int, clock: Clock, folder: Path | None = None) -> None:
        """Make a group that has two places for each front end, so that a new one may live beside the one it replaces.

        Its own folder is in `folder`, else where temporary files are.

        Raises:
            OSError: no folder or file can be made.

        """
        self._num_front_ends = num_front_ends
        self._num_places = 2 * num_front_ends
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._folder = tempfile.mkdtemp(prefix=_PREFIX, dir=folder)
        shared = SharedWords.create(Path(self._folder, _TABLE), num_words(self._num_places), "q")
        self._table = LaneTable(shared.words, 0, self._num_places)
        self._slots = SlotBoard(Path(self._folder, _SLOTS), 0, self._num_places, is_new=True)
        self.bus = LocalBus(self._folder, self._num_places)
        """The parent's own place on the bus."""
        self._board = BoardKeeper(self.bus, clock)
        self._totals = TotalsKeeper(self.bus)

    def group(self, place: int) -> LocalGroup:
        """Return what the front end at a place needs, from 0 to twice the number of front ends less 1."""
        return LocalGroup(self._folder, place, self._num_front_ends, self._num_places, self._secret)

    def clear(self, place: int) -> None:
        """Forget a front end that has ended: its requests, slots, sessions and shares of limits.

        Must be called before another one begins in its place.
        """
        self._table.clear(place)
        self._slots.clear(place)
        self._board.forget(front_end_name(place))
        self._totals.forget(place)

    async def run(self) -> None:
        """Keep the board until cancelled."""
        await self.bus.run()

    def close(self) -> None:
        """Remove the folder, when no front end lives any more."""
        shutil.rmtree(self._folder, ignore_errors=True)


def front_end_name(place: int) -> str:
    """Return the name under which a front end shares limits."""
    return f"front-end-{place}"
