"""Several front ends on one simulated engine: their board, the delay of their rings, and how well they share slots."""

import asyncio
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from completion_server.scheduling.neighbours import OVER, Row
from loadtest.simulation.workload import SimulatedRequest, SimulatedResult, Workload


@dataclass(frozen=True, slots=True)
class FrontEnds:
    """How many there are, and how long a ring takes."""

    num: int = 1
    ring_s: float = 0.0002

    def place_of(self, request: SimulatedRequest) -> int:
        """Return the front end of a request: that of its user's connection, which the kernel chooses by a hash."""
        return zlib.crc32(str(request.user).encode()) % self.num


class MemoryBoard:
    """The rows of all front ends of one process."""

    def __init__(self, num_places: int) -> None:
        """Begin with empty places."""
        self.rows = [list(Row()) for _ in range(num_places)]

    def at(self, place: int) -> "MemoryPlace":
        """Return the board as the front end at a place sees it."""
        return MemoryPlace(self, place)

    def others(self, place: int) -> list[tuple[int, Sequence[float]]]:
        """Return the rows of the other front ends."""
        return [(each, tuple(row)) for each, row in enumerate(self.rows) if each != place and row[0]]

    def note(self) -> None:
        """Take note that a row has changed."""


class WatchedBoard(MemoryBoard):
    """Counts the slots that are free while a request waits that may start, over time."""

    def __init__(self, num_places: int) -> None:
        """Begin with empty places."""
        super().__init__(num_places)
        self.idle_slot_s = 0.0
        """Slots that were free while a request waited, summed over time."""
        self._num_idle = 0.0
        self._since = 0.0

    def note(self) -> None:
        """Take note that a row has changed."""
        now = asyncio.get_running_loop().time()
        self.idle_slot_s += self._num_idle * (now - self._since)
        rows = [Row._make(row) for row in self.rows]
        num_occupied = sum(row.num_occupied for row in rows)
        num_slots = sum(row.num_occupied * row.num_slots for row in rows) / num_occupied if num_occupied else 0.0
        num_waiting = sum(row.num_waiting for row in rows if row.head_class <= OVER)
        self._num_idle, self._since = max(0.0, min(round(num_slots) - num_occupied, num_waiting)), now


class MemoryPlace:
    """The board as one front end sees it."""

    def __init__(self, board: MemoryBoard, place: int) -> None:
        """Write to `place`."""
        self._board, self._place = board, place

    def others(self) -> Sequence[tuple[int, Sequence[float]]]:
        """Return the rows of the other front ends."""
        return self._board.others(self._place)

    def write(self, row: Sequence[float], /) -> None:
        """Write the own row."""
        self._board.rows[self._place] = list(row)
        self._board.note()

    def put(self, field: int, value: float, /) -> None:
        """Write one number of the own row; `note` counts it with the row that comes in the same instant."""
        self._board.rows[self._place][field] = value


@dataclass(frozen=True, slots=True)
class Inversions:
    """Requests that started before a more urgent one of another front end."""

    num_starts: int
    by_s: Sequence[float]
    """How much earlier the more urgent ones had come, in order; a higher class counts as infinitely earlier."""


def inversions_of(results: Iterable[SimulatedResult], workload: Workload, front_ends: FrontEnds) -> Inversions:
    """Find the requests that started while a more urgent one waited in another front end, for longer than rings take.

    That is before the start, since the other front end may not know yet, and after it, since each may have a free slot.
    """
    starts, by_s = list[tuple[float, SimulatedResult]](), list[float]()
    spans = list[tuple[float, float, SimulatedResult]]()
    for each in results:
        arrived_at = each.request.at + workload.profile.front_end_s
        spans.append((arrived_at, each.ended_at if each.started_at is None else each.started_at, each))
        if each.started_at is not None:
            starts.append((each.started_at, each))
    spans.sort(key=lambda span: span[0])
    waiting, num = list[tuple[float, float, SimulatedResult]](), 0
    for at, started in sorted(starts, key=lambda start: start[0]):
        while num < len(spans) and spans[num][0] < at - front_ends.ring_s:
            waiting.append(spans[num])
            num += 1
        waiting = [span for span in waiting if span[1] > at + 2 * front_ends.ring_s]
        place, trigger = front_ends.place_of(started.request), started.request.trigger
        by_s += [max(
            (
                float("inf") if each.request.trigger < trigger else started.request.at - each.request.at
                for _, _, each in waiting
                if front_ends.place_of(each.request) != place and each.request.trigger <= trigger
            ),
            default=0.0,
        )]  # fmt: skip
    return Inversions(len(starts), sorted(each for each in by_s if each > 0))
