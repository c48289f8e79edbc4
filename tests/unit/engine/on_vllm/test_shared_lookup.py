"""The lookup of K in memory shared by the server and the engine core."""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion_server.engine.vllm.drafts.shared_lookup import (
    HEADER_BYTES,
    LOOKUP_ENV,
    LookupPublisher,
    ReaderState,
    SharedLookup,
    create_lookup_file,
    open_published_lookup,
)

SIZE = 16


@pytest.fixture
def ends() -> Iterator[tuple[SharedLookup, SharedLookup]]:
    """The server's end and the engine core's."""
    path = create_lookup_file(SIZE)
    writer, reader = SharedLookup(path, SIZE), SharedLookup(path, SIZE)
    os.unlink(path)
    yield writer, reader
    writer.close()
    reader.close()


def test_a_lookup_is_read_once(ends: tuple[SharedLookup, SharedLookup]) -> None:
    writer, reader = ends
    assert reader.read_new() is None
    for k in range(5):
        assert writer.write([k] * (SIZE + 1)) == k + 1
        assert writer.taken == k
        assert reader.read_new() == [k] * (SIZE + 1)
        assert reader.read_new() is None
        assert writer.taken == writer.version == k + 1


def test_only_the_newest_is_read(ends: tuple[SharedLookup, SharedLookup]) -> None:
    writer, reader = ends
    for k in range(7):
        writer.write([k] * (SIZE + 1))
    assert reader.read_new() == [6] * (SIZE + 1)


def test_a_lookup_for_another_size_is_refused(ends: tuple[SharedLookup, SharedLookup]) -> None:
    with pytest.raises(ValueError, match="17 entries, got 3"):
        ends[0].write([0, 1, 2])


def test_the_engine_core_reports_whether_it_reads(ends: tuple[SharedLookup, SharedLookup]) -> None:
    writer, reader = ends
    assert writer.reader is ReaderState.ABSENT
    reader.set_reader(ReaderState.UNSUPPORTED)
    assert writer.reader is ReaderState.UNSUPPORTED


@given(st.integers(0, 2), st.integers(0, 200), st.binary(min_size=1, max_size=24))
def test_a_corrupt_lookup_is_not_read(num_writes: int, at: int, noise: bytes) -> None:
    """With any noise in the slots, a reader gets a lookup that was written, or none."""
    path = create_lookup_file(SIZE)
    writer, reader = SharedLookup(path, SIZE), SharedLookup(path, SIZE)
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    os.unlink(path)
    written = [[0, *range(k, k + SIZE)] for k in range(num_writes + 1)]
    for lookup in written:
        writer.write(lookup)
    first = HEADER_BYTES + at % (len(memory) - HEADER_BYTES - len(noise))
    memory[first : first + len(noise)] = noise
    assert reader.read_new() in (None, written[-1])
    writer.write(written[0])
    assert reader.read_new() == written[0]


def test_a_lookup_is_published_by_name_and_leaves_no_file() -> None:
    publisher = LookupPublisher(SIZE)
    with publisher.published():
        path = os.environ[LOOKUP_ENV]
        reader = SharedLookup(path, SIZE)
        reader.set_reader(ReaderState.READING)
    assert LOOKUP_ENV not in os.environ
    assert not Path(path).exists()
    assert publisher.unread_reason == ""
    publisher.write([0] * (SIZE + 1))
    assert reader.read_new() == [1] + [0] * SIZE, "entry 0 says that the draft model runs"
    publisher.switch_off()
    assert reader.read_new() == [0] * (SIZE + 1)
    publisher.close()
    publisher.close()


def test_a_lookup_that_is_not_read_has_a_reason() -> None:
    publisher = LookupPublisher(SIZE)
    with publisher.published():
        reader = SharedLookup(os.environ[LOOKUP_ENV], SIZE)
    assert "does not read" in publisher.unread_reason
    reader.set_reader(ReaderState.UNSUPPORTED)
    assert "no longer reads a lookup" in publisher.unread_reason
    publisher.close()


@pytest.mark.parametrize("is_supported", [True, False])
def test_the_engine_core_opens_the_published_lookup(*, is_supported: bool) -> None:
    publisher = LookupPublisher(SIZE)
    assert open_published_lookup(SIZE, is_supported=is_supported) is None
    with publisher.published():
        assert (open_published_lookup(SIZE, is_supported=is_supported) is not None) == is_supported
    assert (publisher.unread_reason == "") == is_supported
    publisher.close()
