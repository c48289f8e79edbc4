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
    SharedLookup,
    open_published_lookup,
)

SIZE = 16
ON = 1
"""Entry 0 of a lookup while the draft model runs."""


@pytest.fixture
def publisher() -> Iterator[LookupPublisher]:
    publisher = LookupPublisher(SIZE)
    yield publisher
    publisher.close()
    publisher.close()


def opened(publisher: LookupPublisher) -> SharedLookup | None:
    """Return the engine core's end."""
    with publisher.published():
        return open_published_lookup(SIZE, is_supported=True)


def test_the_newest_lookup_is_read_once(publisher: LookupPublisher) -> None:
    reader = opened(publisher)
    assert reader is not None
    assert reader.read_new() is None
    for k in (1, 2, 3, 4, 0):
        publisher.write([9] * (SIZE + 1))
        publisher.write([k] * (SIZE + 1))
        assert reader.read_new() == [ON, *[k] * SIZE]
        assert reader.read_new() is None
    publisher.write([0] * (SIZE + 1), is_off=True)
    assert reader.read_new() == [0] * (SIZE + 1)


def test_a_lookup_for_another_size_is_refused(publisher: LookupPublisher) -> None:
    with pytest.raises(ValueError, match="17 entries, got 3"):
        publisher.write([0, 1, 2])


@given(st.integers(0, 2), st.integers(0, 200), st.binary(min_size=1, max_size=24))
def test_a_corrupt_lookup_is_not_read(num_writes: int, at: int, noise: bytes) -> None:
    """With any noise in the slots, a reader gets a lookup that was written, or none."""
    publisher = LookupPublisher(SIZE)
    with publisher.published():
        reader = open_published_lookup(SIZE, is_supported=True)
        with open(os.environ[LOOKUP_ENV], "r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
    assert reader is not None
    written = [[ON, *range(k, k + SIZE)] for k in range(num_writes + 1)]
    for lookup in written:
        publisher.write(lookup)
    first = HEADER_BYTES + at % (len(memory) - HEADER_BYTES - len(noise))
    memory[first : first + len(noise)] = noise
    assert reader.read_new() in (None, written[-1])
    publisher.write(written[0])
    assert reader.read_new() == written[0]


def test_a_published_lookup_leaves_no_file_and_says_whether_it_is_read(publisher: LookupPublisher) -> None:
    assert open_published_lookup(SIZE, is_supported=True) is None
    assert "does not read" in publisher.unread_reason
    with publisher.published():
        path = Path(os.environ[LOOKUP_ENV])
        assert open_published_lookup(SIZE, is_supported=False) is None
    assert "no longer reads a lookup" in publisher.unread_reason
    assert LOOKUP_ENV not in os.environ
    assert not path.exists()


def test_an_engine_core_that_reads_gives_no_reason(publisher: LookupPublisher) -> None:
    assert opened(publisher) is not None
    assert publisher.unread_reason == ""
