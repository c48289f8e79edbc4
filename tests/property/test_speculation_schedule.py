"""Properties of every speculation schedule."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.engine.speculation.schedule import (
    ScheduleError,
    ScheduleRow,
    SpeculationSchedule,
    parse_schedule,
)

MAX_K = 8
lookups = st.lists(st.integers(0, MAX_K), min_size=1, max_size=40).map(lambda ks: [0, *ks])


@st.composite
def row_lists(draw: st.DrawFn) -> list[list[int]]:
    """Rows that follow one another from 1 on."""
    rows, first = [], 1
    for _ in range(draw(st.integers(1, 6))):
        last = first + draw(st.integers(0, 9))
        rows.append([first, last, draw(st.integers(0, MAX_K))])
        first = last + 1
    return rows


@given(row_lists(), st.integers(1, 80))
def test_a_schedule_and_its_lookup_equal_its_rows(rows: list[list[int]], max_batch_size: int) -> None:
    schedule = parse_schedule(rows, MAX_K)
    assert schedule.as_lists() == rows
    for first, last, k in rows:
        assert {schedule.num_speculative_tokens(size) for size in range(first, last + 1)} == {k}
    assert schedule.num_speculative_tokens(10_000) == rows[-1][2]
    assert schedule.largest == max(k for _, _, k in rows)
    lookup = schedule.lookup(max_batch_size)
    assert len(lookup) == max_batch_size + 1
    assert lookup[1:] == [schedule.num_speculative_tokens(size) for size in range(1, max_batch_size + 1)]
    fixed = SpeculationSchedule.fixed(rows[0][2], max_batch_size)
    assert fixed.rows == (ScheduleRow(1, max_batch_size, rows[0][2]),)


@given(lookups)
def test_a_lookup_and_its_schedule_are_the_same(lookup: list[int]) -> None:
    schedule = SpeculationSchedule.of_lookup(lookup)
    assert schedule.lookup(len(lookup) - 1) == lookup
    assert parse_schedule(schedule.as_lists(), MAX_K) == schedule
    assert all(
        before.num_speculative_tokens != after.num_speculative_tokens for before, after in pairwise(schedule.rows)
    )


@given(row_lists(), st.data())
def test_a_fault_names_its_row(rows: list[list[int]], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    first, last, k = rows[at]
    spoilt, message = data.draw(
        st.sampled_from(
            [
                ([first + 1, last + 1, k], "must begin at batch size"),
                ([first - 1, last, k], "must begin at batch size"),
                ([first, first - 1, k], "before it begins"),
                ([first, last, MAX_K + 1], "is over the 8"),
                ([first, last, -1], "at least 0"),
                ([first, last], "three whole numbers"),
                ([first, last, 1.5], "three whole numbers"),
                ([first, last, True], "three whole numbers"),
                ("123", "three whole numbers"),
                (7, "three whole numbers"),
            ]
        )
    )
    with pytest.raises(ScheduleError, match=message) as caught:
        parse_schedule([*rows[:at], spoilt, *rows[at + 1 :]], MAX_K)
    assert caught.value.row == at
    assert f"schedule[{at}]" in str(caught.value)
    with pytest.raises(ScheduleError, match="at least one row"):
        parse_schedule([], MAX_K)
