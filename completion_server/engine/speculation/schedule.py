"""A schedule: the number of speculative tokens (K) by batch size. Pure.

A schedule is a list of rows [first, last, K]: in a step of `first` to `last` generations each gets K draft tokens. Rows
follow one another from batch size 1 on without a gap; the last one also holds for all larger batches, as in vLLM. The
largest K is bounded by the one with which the engine was started.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_WIDTH = 3


class ScheduleError(ValueError):
    """A schedule can't be used. `row` is the index of the faulty row, None if it is not a single row."""

    def __init__(self, fault: str, row: int | None = None) -> None:
        """Describe the fault and name its row."""
        super().__init__(fault if row is None else f"schedule[{row}]: {fault}")
        self.fault = fault
        self.row = row


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """K for a range of batch sizes, both ends included."""

    first: int
    last: int
    num_speculative_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationSchedule:
    """K for every batch size. Create it with `parse_schedule`, `fixed`, `of_lookup` or `of_rows`."""

    rows: tuple[ScheduleRow, ...]

    @classmethod
    def fixed(cls, num_speculative_tokens: int, max_batch_size: int) -> "SpeculationSchedule":
        """Return the schedule with one K for all batch sizes."""
        return cls((ScheduleRow(1, max(1, max_batch_size), num_speculative_tokens),))

    @classmethod
    def of_lookup(cls, lookup: Sequence[int]) -> "SpeculationSchedule":
        """Return the shortest schedule whose `lookup` is this list of two entries or more."""
        return cls.of_rows(ScheduleRow(batch_size, batch_size, k) for batch_size, k in enumerate(lookup[1:], 1))

    @classmethod
    def of_rows(cls, rows: Iterable[ScheduleRow]) -> "SpeculationSchedule":
        """Return the shortest schedule equal to rows that follow one another without a gap."""
        merged: list[ScheduleRow] = []
        for row in rows:
            if merged and merged[-1].num_speculative_tokens == row.num_speculative_tokens:
                merged[-1] = ScheduleRow(merged[-1].first, row.last, row.num_speculative_tokens)
            else:
                merged.append(row)
        return cls(tuple(merged))

    @property
    def largest(self) -> int:
        """The largest K in it."""
        return max(row.num_speculative_tokens for row in self.rows)

    def num_speculative_tokens(self, batch_size: int) -> int:
        """Return K for a step of `batch_size` generations."""
        for row in self.rows:
            if batch_size <= row.last:
                return row.num_speculative_tokens
        return self.rows[-1].num_speculative_tokens

    def lookup(self, max_batch_size: int) -> list[int]:
        """Return K by batch size from 0 to `max_batch_size`; entry 0 is unused and is 0.

        This is the form in which the engine takes it.
        """
        lookup = [0]
        for row in self.rows:
            lookup += [row.num_speculative_tokens] * (min(row.last, max_batch_size) + 1 - len(lookup))
        return lookup + [self.rows[-1].num_speculative_tokens] * (max_batch_size + 1 - len(lookup))

    def as_lists(self) -> list[list[int]]:
        """Return the rows as [first, last, K]."""
        return [[row.first, row.last, row.num_speculative_tokens] for row in self.rows]


def parse_schedule(rows: Iterable[Sequence[int]], max_num_speculative_tokens: int) -> SpeculationSchedule:
    """Return the schedule of rows [first, last, K].

    Raises:
        ScheduleError: there is no row, or a row is not three whole numbers, does not begin right after the previous
            one, ends before it begins, or has a K below 0 or over the maximum.

    """
    parsed: list[ScheduleRow] = []
    next_batch_size = 1
    for at, numbers in enumerate(rows):
        row = _parse_row(numbers, at, max_num_speculative_tokens)
        if row.first != next_batch_size:
            first = "the first row " if at == 0 else ""
            raise ScheduleError(f"{first}must begin at batch size {next_batch_size}, got {row.first}", at)
        parsed.append(row)
        next_batch_size = row.last + 1
    if not parsed:
        raise ScheduleError("a schedule needs at least one row of [first, last, K]")
    return SpeculationSchedule(tuple(parsed))


def _parse_row(numbers: Sequence[int], at: int, max_num_speculative_tokens: int) -> ScheduleRow:
    is_list = isinstance(numbers, Sequence) and not isinstance(numbers, str)
    if not is_list or len(numbers) != _WIDTH or any(type(number) is not int for number in numbers):
        raise ScheduleError(f"must be three whole numbers [first, last, K], got {numbers!r}", at)
    row = ScheduleRow(*numbers)
    if row.last < row.first:
        raise ScheduleError(f"ends at batch size {row.last}, before it begins at {row.first}", at)
    if row.num_speculative_tokens < 0:
        raise ScheduleError(f"K must be at least 0, got {row.num_speculative_tokens}", at)
    if row.num_speculative_tokens > max_num_speculative_tokens:
        limit = f"the {max_num_speculative_tokens} that the engine was started with"
        raise ScheduleError(f"K = {row.num_speculative_tokens} is over {limit}", at)
    return row
