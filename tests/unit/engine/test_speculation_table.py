"""The memory that the server and the engine core share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.engine.vllm.schedule_table import (
    TABLE_ENV,
    Follower,
    LiveTable,
    SpeculationTable,
    create_table_file,
    join_table,
)

SIZE = 16


@pytest.fixture
def ends() -> Iterator[tuple[SpeculationTable, SpeculationTable]]:
    """The server's end and the engine core's."""
    path = create_table_file(SIZE)
    writer, reader = SpeculationTable(path, SIZE), SpeculationTable(path, SIZE)
    os.unlink(path)
    yield writer, reader
    writer.close()
    reader.close()


def test_a_schedule_is_read_once(ends: tuple[SpeculationTable, SpeculationTable]) -> None:
    writer, reader = ends
    assert reader.read_new() is None
    for k in range(5):
        assert writer.write([k] * (SIZE + 1)) == k + 1
        assert writer.taken == k
        assert reader.read_new() == [k] * (SIZE + 1)
        assert reader.read_new() is None
        assert writer.taken == writer.version == k + 1


def test_only_the_newest_is_read(ends: tuple[SpeculationTable, SpeculationTable]) -> None:
    writer, reader = ends
    for k in range(7):
        writer.write([k] * (SIZE + 1))
    assert reader.read_new() == [6] * (SIZE + 1)


def test_a_schedule_for_another_size_is_refused(ends: tuple[SpeculationTable, SpeculationTable]) -> None:
    with pytest.raises(ValueError, match="17 batch sizes, got 3"):
        ends[0].write([0, 1, 2])


def test_the_engine_core_says_what_it_made_of_it(ends: tuple[SpeculationTable, SpeculationTable]) -> None:
    writer, reader = ends
    assert writer.follower is Follower.ABSENT
    reader.follow(Follower.CANT)
    assert writer.follower is Follower.CANT


@given(st.integers(0, 2), st.integers(0, 200), st.binary(min_size=1, max_size=24))
def test_what_does_not_fit_together_is_not_read(num_writes: int, at: int, noise: bytes) -> None:
    """Whatever a reader finds in place of the slots, it takes a schedule that was written, or none."""
    path = create_table_file(SIZE)
    writer, reader = SpeculationTable(path, SIZE), SpeculationTable(path, SIZE)
    os.unlink(path)
    written = [[0, *range(k, k + SIZE)] for k in range(num_writes + 1)]
    for lookup in written:
        writer.write(lookup)
    memory = writer._memory
    first = 24 + at % (len(memory) - 24 - len(noise))
    memory[first : first + len(noise)] = noise
    assert reader.read_new() in (None, written[-1])
    writer.write(written[0])
    assert reader.read_new() == written[0]


def test_a_table_is_offered_by_name_and_leaves_no_file() -> None:
    table = LiveTable(SIZE)
    with table.offered():
        path = os.environ[TABLE_ENV]
        reader = SpeculationTable(path, SIZE)
        reader.follow(Follower.FOLLOWS)
    assert TABLE_ENV not in os.environ
    assert not Path(path).exists()
    assert table.unfollowed_because == ""
    table.write([3] * (SIZE + 1))
    assert reader.read_new() == [3] * (SIZE + 1)
    table.close()
    table.close()


def test_a_table_that_nobody_follows_says_why() -> None:
    table = LiveTable(SIZE)
    with table.offered():
        reader = SpeculationTable(os.environ[TABLE_ENV], SIZE)
    assert "does not follow" in table.unfollowed_because
    reader.follow(Follower.CANT)
    assert "no longer reads a schedule" in table.unfollowed_because
    table.close()


@pytest.mark.parametrize("can_follow", [True, False])
def test_the_engine_core_joins_the_table_on_offer(*, can_follow: bool) -> None:
    table = LiveTable(SIZE)
    assert join_table(SIZE, can_follow=can_follow) is None
    with table.offered():
        assert (join_table(SIZE, can_follow=can_follow) is not None) == can_follow
    assert (table.unfollowed_because == "") == can_follow
    table.close()
