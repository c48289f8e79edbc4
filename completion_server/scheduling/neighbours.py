"""What the front ends of one engine tell each other of their books, and what a book concludes from it. Pure.

Each front end has a place on a board. It writes the row of its own place and reads those of the others, without a lock:

- The front ends agree on the number of slots: the mean of what their limiters found, by the slots that each has taken.
- A front end starts a request while a slot is free, and leaves one free slot to each front end with a more urgent one.
  If it gives way, or leaves a slot free, it rings those, so that they look. A front end that does not answer for
  `PATIENCE_S` is passed over until it writes again; a ring that is lost is made good by a look every `LOOK_S`.
- A user who is over the share of users elsewhere, of the same tenant, is over its share here; see shares.py.
- A row is what was true a moment ago. Of N front ends that see the same free slot at once each may take it, so at most
  N - 1 generations run beyond the slots. A front end tells at once what it starts and what has stopped, and all else
  after its event or, while no request waits anywhere, after all events of a turn of its event loop.
- If k slots come free within the time of a ring, up to k - 1 requests may start before more urgent ones elsewhere.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

PATIENCE_S = 0.020
"""How long a free slot waits for a front end that goes first: a hundred times what a ring takes."""
LOOK_S = 0.050
"""How long a request waits at most before its front end looks at the others again."""

Rank = tuple[float, float]
"""Class and order of a waiting request; the smallest goes first. A class is 1 + trigger, and `OVER` more if its owner
is over its share; 0 stands for no request."""
OVER = 3.0


class UserLevel(NamedTuple):
    """How far the users of a tenant have come, see shares.py."""

    tenant: float = 0.0
    """A hash of its name; 0 for none."""
    least: float = math.inf
    """The least position of a user who wants tokens."""
    now: float = 0.0


class Row(NamedTuple):
    """What a front end says of its book. A place without a front end has zeros."""

    version: float = 0.0
    """Increases with each row, so that others see that the front end is alive."""
    num_slots: float = 0.0
    """The limit that its own limiter found."""
    num_occupied: float = 0.0
    num_waiting: float = 0.0
    """Requests that wait for a slot."""
    num_missing: float = 0.0
    """Slots that those need, less the ones that come free."""
    num_past_budget: float = 0.0
    """Requests with a slot that end as soon as another one waits."""
    num_explicit: float = 0.0
    """Those that wait, by trigger; the others are prefetches."""
    num_automatic: float = 0.0
    num_joined: float = 0.0
    new_tokens: float = 0.0
    """Prompt tokens that the engine has to compute, of those that wait."""
    computing_tokens: float = 0.0
    """The same, of those with a slot."""
    head_class: float = 0.0
    """Rank of the request that would start next."""
    head_order: float = 0.0
    tenant: float = 0.0
    """The level of the users of one tenant."""
    tenant_least: float = math.inf
    tenant_now: float = 0.0

    @property
    def rank(self) -> Rank:
        """Rank of the request that would start next."""
        return self.head_class, self.head_order


class Board(Protocol):
    """The rows of all places, as one front end sees them."""

    def others(self) -> Sequence[tuple[int, Sequence[float]]]:
        """Return the places of the other front ends and their rows."""
        ...

    def write(self, row: Sequence[float], /) -> None:
        """Write the own row."""
        ...

    def put(self, field: int, value: float, /) -> None:
        """Write one field of the own row."""
        ...


_NO_LEVEL = UserLevel()
_NUM_SLOTS, _NUM_OCCUPIED = Row._fields.index("num_slots"), Row._fields.index("num_occupied")
_NUM_WAITING, _NUM_MISSING = Row._fields.index("num_waiting"), Row._fields.index("num_missing")
_NUM_PAST_BUDGET, _NUM_JOINED = Row._fields.index("num_past_budget"), Row._fields.index("num_joined")
_NEW_TOKENS, _COMPUTING_TOKENS = Row._fields.index("new_tokens"), Row._fields.index("computing_tokens")
"""Of the values that are read often, from rows as they come: a named tuple takes as long to make as all else here."""


class Neighbours:
    """The other front ends of the engine. This base class has none, and costs next to nothing."""

    num_occupied = 0
    """Slots that they have taken, when last seen."""
    look_at = float("inf")
    """When to look again if a request waits, in clock seconds."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait there for a slot."""
        return 0

    @property
    def num_missing(self) -> int:
        """Slots that those need, beside the ones that are free or come free."""
        return 0

    @property
    def new_tokens(self) -> float:
        """Prompt tokens that the engine has to compute, of those that wait there."""
        return 0.0

    @property
    def computing_tokens(self) -> float:
        """The same, of those with a slot."""
        return 0.0

    def num_free(self, num_occupied: int, num_slots: int, now: float) -> int:
        """Look at the others; return how many slots of the engine are free. The arguments are the front end's own."""
        return num_slots - num_occupied

    def slots(self, num_occupied: int, num_slots: int) -> int:
        """Return the number of slots that the front ends agree on, as last seen."""
        return num_slots

    def queue_limit(self, max_queued: int) -> int:
        """Return how many requests may wait in this front end."""
        return max_queued

    def num_ahead(self, rank: Rank) -> int:
        """Return how many requests elsewhere are served before a newcomer, at most."""
        return 0

    def level(self, tenant: float) -> UserLevel:
        """Return the level of a tenant's users elsewhere."""
        return _NO_LEVEL

    def go_first(self, rank: Rank, num_free: int, now: float) -> bool:
        """Return whether the free slots are for more urgent requests elsewhere than the one of this rank."""
        return False

    def occupy(self, num_occupied: int) -> None:
        """Tell the others at once how many slots this front end has taken."""

    def write(self, row: Row) -> None:
        """Tell the others of the book."""

    def to_ring(self, num_free: int, *, waits: bool) -> list[int]:
        """Return the places to ring: those that should act, and have not been rung since they last wrote.

        That is one for each free slot; if none is free and a request `waits` here, those that can free one.
        """
        return []


ALONE = Neighbours()


def _read(row: tuple[int, Sequence[float]]) -> tuple[int, Row]:
    return row[0], Row._make(row[1])


class BoardNeighbours(Neighbours):
    """The other front ends, by their rows on a board."""

    def __init__(self, board: Board) -> None:
        """Be there, with nothing to tell yet."""
        self._board = board
        board.write(Row(version=1.0))
        self._rows: Sequence[tuple[int, Sequence[float]]] = ()
        self._limits = 0.0
        """Sum of their limits, each times its slots."""
        self._num_free = 0
        self._gave_way: dict[int, tuple[float, float]] = {}
        """The places that went first, the version of their rows then, and since when."""
        self._passed_over: dict[int, float] = {}
        """The places that have not answered, and the versions of their rows."""
        self._rung: dict[int, float] = {}
        """The places that were rung, and the versions of their rows then."""

    def num_free(self, num_occupied: int, num_slots: int, now: float) -> int:
        """Look at the others; return how many slots of the engine are free."""
        self._rows = rows = self._board.others()
        self.look_at = now + LOOK_S
        occupied = limits = 0.0
        for _, row in rows:
            occupied += row[_NUM_OCCUPIED]
            limits += row[_NUM_OCCUPIED] * row[_NUM_SLOTS]
        self.num_occupied, self._limits = int(occupied), limits
        self._num_free = self.slots(num_occupied, num_slots) - num_occupied - self.num_occupied
        return self._num_free

    @property
    def num_waiting(self) -> int:
        """Requests that wait there for a slot."""
        return int(self._sum(_NUM_WAITING))

    @property
    def num_missing(self) -> int:
        """Slots that those need, beside the ones that are free or come free."""
        return int(self._sum(_NUM_MISSING)) - max(0, self._num_free)

    @property
    def new_tokens(self) -> float:
        """Prompt tokens that the engine has to compute, of those that wait there."""
        return self._sum(_NEW_TOKENS)

    @property
    def computing_tokens(self) -> float:
        """The same, of those with a slot."""
        return self._sum(_COMPUTING_TOKENS)

    def _sum(self, field: int) -> float:
        return sum(row[field] for _, row in self._rows)

    def slots(self, num_occupied: int, num_slots: int) -> int:
        """Return the mean of the front ends' limits, weighted by the slots that they have taken.

        An idle front end has seen nothing of the engine, and has no weight.
        """
        if not self.num_occupied:
            return num_slots
        return round((num_occupied * num_slots + self._limits) / (num_occupied + self.num_occupied))

    def queue_limit(self, max_queued: int) -> int:
        """Return what the others leave, and this front end's part at least: else their prefetches could fill it.

        So at most twice `max_queued` requests wait in all.
        """
        num_elsewhere = int(self._sum(_NUM_WAITING) + self._sum(_NUM_JOINED))
        return max(max_queued - num_elsewhere, max_queued // (1 + len(self._rows)))

    def num_ahead(self, rank: Rank) -> int:
        """Return how many requests elsewhere are served before a newcomer, at most."""
        num, trigger = 0.0, int(rank[0]) - 1
        for _, row in map(_read, self._rows):
            num_automatic = row.num_explicit + row.num_automatic
            up_to = 0.0, row.num_explicit, num_automatic, row.num_waiting
            num += up_to[trigger if rank < row.rank else trigger + 1]
        return int(num)

    def level(self, tenant: float) -> UserLevel:
        """Return the level of a tenant's users elsewhere."""
        rows = [row for _, row in map(_read, self._rows) if row.tenant == tenant]
        if not rows:
            return _NO_LEVEL
        return UserLevel(tenant, min(row.tenant_least for row in rows), max(row.tenant_now for row in rows))

    def go_first(self, rank: Rank, num_free: int, now: float) -> bool:
        """Return whether the free slots are for more urgent requests elsewhere than the one of this rank.

        Among owners over their share none goes first: whether they may start depends on the engine.
        """
        num_first = 0
        for place, row in map(_read, self._rows):
            if not 0 < row.head_class <= OVER or row.rank >= rank or self._passed_over.get(place) == row.version:
                continue
            version, since = self._gave_way.get(place, (-1.0, now))
            if version != row.version:
                self._gave_way[place] = row.version, now
            elif now >= since + PATIENCE_S:
                self._passed_over[place] = row.version
                continue
            self.look_at = min(self.look_at, self._gave_way[place][1] + PATIENCE_S)
            num_first += 1
        return num_first >= num_free

    def occupy(self, num_occupied: int) -> None:
        """Tell the others at once how many slots this front end has taken."""
        self._board.put(_NUM_OCCUPIED, num_occupied)

    def write(self, row: Row) -> None:
        """Tell the others of the book."""
        self._board.write(row)

    def to_ring(self, num_free: int, *, waits: bool) -> list[int]:
        """Return the places to ring: those that should act, and have not been rung since they last wrote."""
        if num_free > 0:
            heads = sorted((row.rank, place, row.version) for place, row in map(_read, self._rows) if row.head_class)
            found = [(place, version) for _, place, version in heads[:num_free]]
        else:
            rows = self._rows if waits else ()
            found = [(place, row[0]) for place, row in rows if row[_NUM_PAST_BUDGET]]
        to_ring = [place for place, version in found if self._rung.get(place) != version]
        self._rung.update(found)
        return to_ring
