"""How many tokens a draft proposes for each step (K), by batch size: the schedule that the engine follows. Pure.

A schedule is a list of rows [first, last, K]: with `first` to `last` generations in a step, each gets K draft tokens.
Rows follow one another from batch size 1 on without a gap; the last one also holds for all larger batches, as in vLLM.
K is at most the ceiling, with which the engine was started.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_WIDTH = 3


class ScheduleError(ValueError):
    """A schedule can't be used. `row` is the index of the row at fault, None where it is no one row."""

    def __init__(self, fault: str, row: int | None = None) -> None:
        """Say what is wrong, and in which row."""
        super().__init__(fault if row is None else f"schedule[{row}]: {fault}")
        self.fault = fault
        self.row = row


class SpeculationFixedError(Exception):
    """K can't be changed on this engine while it runs; the message says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """K for a range of batch sizes, both ends included."""

    first: int
    last: int
    num_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """K for every batch size. Made by `parse_schedule` or `fixed`, which refuse what can't be used."""

    rows: tuple[Row, ...]

    @classmethod
    def fixed(cls, num_draft_tokens: int, max_batch_size: int) -> "Schedule":
        """Return the schedule with one K for all batch sizes."""
        return cls((Row(1, max(1, max_batch_size), num_draft_tokens),))

    @classmethod
    def of_lookup(cls, lookup: Sequence[int]) -> "Schedule":
        """Return the shortest schedule whose `lookup` is this list of two entries or more."""
        return cls.of_rows(Row(batch_size, batch_size, k) for batch_size, k in enumerate(lookup[1:], 1))

    @classmethod
    def of_rows(cls, rows: Iterable[Row]) -> "Schedule":
        """Return the shortest schedule that says the same as rows which follow one another without a gap."""
        merged: list[Row] = []
        for row in rows:
            if merged and merged[-1].num_draft_tokens == row.num_draft_tokens:
                merged[-1] = Row(merged[-1].first, row.last, row.num_draft_tokens)
            else:
                merged.append(row)
        return cls(tuple(merged))

    @property
    def largest(self) -> int:
        """The largest K in it."""
        return max(row.num_draft_tokens for row in self.rows)

    def num_draft_tokens(self, batch_size: int) -> int:
        """Return K for a step of `batch_size` generations."""
        for row in self.rows:
            if batch_size <= row.last:
                return row.num_draft_tokens
        return self.rows[-1].num_draft_tokens

    def lookup(self, max_batch_size: int) -> list[int]:
        """Return K by batch size from 0 to `max_batch_size`; the first entry means nothing, and is 0.

        This is what vLLM's scheduler keeps in `dynamic_sd_lookup`.
        """
        lookup = [0]
        for row in self.rows:
            lookup += [row.num_draft_tokens] * (min(row.last, max_batch_size) + 1 - len(lookup))
        return lookup + [self.rows[-1].num_draft_tokens] * (max_batch_size + 1 - len(lookup))

    def check_ceiling(self, ceiling: int) -> None:
        """Refuse a K above `ceiling`.

        Raises:
            ScheduleError: a row has one.

        """
        for at, row in enumerate(self.rows):
            if row.num_draft_tokens > ceiling:
                fault = f"K = {row.num_draft_tokens} is over the {ceiling} that the engine was started with"
                raise ScheduleError(fault, at)

    def as_lists(self) -> list[list[int]]:
        """Return the rows as [first, last, K]."""
        return [[row.first, row.last, row.num_draft_tokens] for row in self.rows]


def parse_schedule(rows: Iterable[Sequence[int]], ceiling: int) -> Schedule:
    """Return the schedule that rows of [first, last, K] mean.

    Raises:
        ScheduleError: there is none, or a row is not three whole numbers, does not begin where the one before it ended,
            ends before it begins, or has a K below 0 or over `ceiling`.

    """
    parsed: list[Row] = []
    next_batch_size = 1
    for at, numbers in enumerate(rows):
        row = _parse_row(numbers, at)
        if row.first != next_batch_size:
            raise ScheduleError(_misplaced(row, next_batch_size), at)
        parsed.append(row)
        next_batch_size = row.last + 1
    if not parsed:
        raise ScheduleError("a schedule needs at least one row of [first, last, K]")
    schedule = Schedule(tuple(parsed))
    schedule.check_ceiling(ceiling)
    return schedule


def _parse_row(numbers: Sequence[int], at: int) -> Row:
    is_list = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not is_list or len(numbers) != _WIDTH or any(type(number) is not int for number in numbers):
        raise ScheduleError(f"must be three whole numbers [first, last, K], got {numbers!r}", at)
    row = Row(*numbers)
    if row.last < row.first:
        raise ScheduleError(f"ends at batch size {row.last}, before it begins at {row.first}", at)
    if row.num_draft_tokens < 0:
        raise ScheduleError(f"K must be at least 0, got {row.num_draft_tokens}", at)
    return row


def _misplaced(row: Row, next_batch_size: int) -> str:
    """Say why a row that does not begin at `next_batch_size` can't stand where it does."""
    if next_batch_size == 1:
        return f"the first row must begin at batch size 1, got {row.first}"
    if row.first < next_batch_size:
        return f"begins at batch size {row.first}, which the row before it has already"
    return f"begins at batch size {row.first} and leaves a gap from {next_batch_size} on"
