"""The K schedule in memory that two processes share: the server writes it, the engine core reads it at each step.

A file of one page, mapped by both. Its header is three words, each written and read as one:

- `version` counts the schedules written. Schedule number v is in slot v % 2, so that the one in force is never
  overwritten; a slot also holds its own version and a checksum. A reader that was overtaken by two writes sees that
  they don't fit and looks again at the next step: it can't see half a schedule, whatever order a processor stores in.
- `taken` is the version that the engine core last put in force.
- `state` says whether the engine core follows this table at all.

The file's name is passed on in the environment, not in vLLM's configuration, whose hash is the key of compiled models.
"""

import contextlib
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum

SPECULATE = "completion_server.speculate"
"""In the `extra_args` of vLLM's sampling parameters: False where no drafts are wanted for a request."""

TABLE_ENV = "COMPLETION_SERVER_SPECULATION_TABLE"
"""Where the engine core finds the table's file."""

_NUM_HEADER_WORDS = 3
_VERSION, _TAKEN, _STATE = range(_NUM_HEADER_WORDS)
_WORD = 8
_SLOT_HEAD = struct.Struct("=QII")
"""A slot's version, checksum and number of entries; then one byte for each K."""

MAX_DRAFT_TOKENS = 255
"""The largest K that an entry holds."""


class Follower(IntEnum):
    """What the engine core made of the table."""

    ABSENT = 0
    """It has not said; an engine whose scheduler is not ours never does."""
    FOLLOWS = 1
    """It puts each schedule in force at the step after it was written."""
    CANT = 2
    """Its scheduler lacks the attribute that a schedule is put in force by."""


class SpeculationTable:
    """One end of the table. One process writes schedules; one reads them and says what it made of them."""

    def __init__(self, path: str, max_batch_size: int) -> None:
        """Map the file, which has room for schedules of up to `max_batch_size`."""
        self._slot_size = _slot_size(max_batch_size)
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _file_size(max_batch_size))
        self._header = memoryview(self._memory).cast("Q")
        self._max_batch_size = max_batch_size

    @property
    def version(self) -> int:
        """How many schedules were written."""
        return self._header[_VERSION]

    @property
    def taken(self) -> int:
        """The version that the engine core last put in force."""
        return self._header[_TAKEN]

    @property
    def follower(self) -> Follower:
        """What the engine core made of the table."""
        return Follower(self._header[_STATE])

    def follow(self, follower: Follower) -> None:
        """Say what is made of the table; the engine core's to call."""
        self._header[_STATE] = follower

    def write(self, lookup: Sequence[int]) -> int:
        """Write a schedule, K by batch size from 0 on, and return its version; the server's to call."""
        if len(lookup) != self._max_batch_size + 1:
            msg = f"the table is for {self._max_batch_size + 1} batch sizes, got {len(lookup)}"
            raise ValueError(msg)
        version = self.version + 1
        entries = bytes(lookup)
        checksum = _checksum(version, entries)
        at = self._slot_at(version)
        self._memory[at : at + _SLOT_HEAD.size] = _SLOT_HEAD.pack(version, checksum, len(entries))
        self._memory[at + _SLOT_HEAD.size : at + _SLOT_HEAD.size + len(entries)] = entries
        self._header[_VERSION] = version
        return version

    def read_new(self) -> list[int] | None:
        """Return the newest schedule, None where that was taken already; the engine core's to call at each step."""
        version = self._header[_VERSION]
        if version == self._header[_TAKEN]:
            return None
        at = self._slot_at(version)
        slot = self._memory[at : at + self._slot_size]
        written, checksum, num_entries = _SLOT_HEAD.unpack_from(slot)
        entries = slot[_SLOT_HEAD.size : _SLOT_HEAD.size + num_entries]
        if written != version or checksum != _checksum(version, entries):
            return None
        self._header[_TAKEN] = version
        return list(entries)

    def close(self) -> None:
        """Unmap the file. May be called more than once."""
        self._header.release()
        self._memory.close()

    def _slot_at(self, version: int) -> int:
        return _NUM_HEADER_WORDS * _WORD + version % 2 * self._slot_size


class LiveTable:
    """The server's end of a table, and its file until the engine core has mapped that."""

    def __init__(self, max_batch_size: int) -> None:
        """Make an empty table."""
        self._path = create_table_file(max_batch_size)
        self._table = SpeculationTable(self._path, max_batch_size)

    @contextlib.contextmanager
    def offered(self) -> Iterator[None]:
        """Let an engine core that starts meanwhile find it. Afterwards no name of it is left."""
        os.environ[TABLE_ENV] = self._path
        try:
            yield
        finally:
            # A load that was given up may end late, when the next one has its own there.
            if os.environ.get(TABLE_ENV) == self._path:
                del os.environ[TABLE_ENV]
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    @property
    def unfollowed_because(self) -> str:
        """Why the engine core does not follow the table; "" where it does."""
        match self._table.follower:
            case Follower.FOLLOWS:
                return ""
            case Follower.CANT:
                return "the scheduler of this vLLM no longer reads a schedule at each step"
            case Follower.ABSENT:
                return "the engine does not follow the table of draft lengths"

    def write(self, lookup: Sequence[int]) -> None:
        """Put a schedule in force from the next step on: K by batch size from 0 on."""
        self._table.write(lookup)

    def close(self) -> None:
        """Unmap it. May be called more than once."""
        self._table.close()


def join_table(max_batch_size: int, *, can_follow: bool) -> SpeculationTable | None:
    """Return the engine core's end of the table on offer, None where there is none or it can't be followed."""
    path = os.environ.get(TABLE_ENV)
    if path is None:
        return None
    table = SpeculationTable(path, max_batch_size)
    table.follow(Follower.FOLLOWS if can_follow else Follower.CANT)
    return table if can_follow else None


def create_table_file(max_batch_size: int) -> str:
    """Create the file of an empty table and return its path; whoever calls this removes it."""
    handle, path = tempfile.mkstemp(prefix="completion-server-", suffix=".speculation")
    with os.fdopen(handle, "wb") as file:
        file.truncate(_file_size(max_batch_size))
    return path


def _file_size(max_batch_size: int) -> int:
    return _NUM_HEADER_WORDS * _WORD + 2 * _slot_size(max_batch_size)


def _slot_size(max_batch_size: int) -> int:
    """Return the bytes of a slot, whole words."""
    num_bytes = _SLOT_HEAD.size + max_batch_size + 1
    return -(-num_bytes // _WORD) * _WORD


def _checksum(version: int, entries: bytes) -> int:
    return zlib.crc32(entries, version & 0xFFFFFFFF)
