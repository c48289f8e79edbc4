"""K by number of sequences in shared memory: the server writes the lookup, the engine core reads it at each step.

A file of one page, mapped by both, and by each front end that shares the engine. Its header is three words, each
written and read as one:

- `version` counts the lookups written. Lookup number v is in slot v % 2, so that the active one is never overwritten. A
  slot also holds its own version and a checksum. A reader that was overtaken by two writes finds a mismatch and tries
  again at the next step: it can't read a mixture of two lookups, in any memory order of the processor.
- `state` is a `ReaderState`: whether the engine core reads this lookup at all.
- `epoch` is that of the salts of prompts (see `EngineSpeculation`); for the front ends.

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
from pathlib import Path

SPECULATE = "completion_server.speculate"
"""Key in the `extra_args` of vLLM's sampling parameters: False if the request refuses drafts."""

RUNS_DRAFT = "completion_server_runs_draft"
"""Attribute that the scheduler adds to vLLM's output of a step: False if the draft model is switched off."""

LOOKUP_ENV = "COMPLETION_SERVER_SPECULATION_LOOKUP"
"""Environment variable with the path of the shared file."""

HEADER_BYTES = 24
"""Size of the header; the two slots follow it."""

MAX_NUM_SPECULATIVE_TOKENS = 255
"""The largest K that an entry holds."""

_LIVE = 1
"""Entry 0 of a lookup, which no step uses, says whether the draft model runs at all: `_LIVE` or 0."""

_WORD = 8
_VERSION, _STATE, _EPOCH = range(HEADER_BYTES // _WORD)
_SLOT_HEAD = struct.Struct("=QII")
"""A slot's version, checksum and number of entries; then one byte for each K."""


class ReaderState(IntEnum):
    """Whether the engine core reads the lookup."""

    ABSENT = 0
    """Unknown; an engine with a foreign scheduler stays in this state."""
    READING = 1
    """It makes each lookup active at the step after it was written."""
    UNSUPPORTED = 2
    """Its scheduler lacks the attribute that holds the active lookup."""


class SharedLookup:
    """One end of the shared memory. The server's process writes lookups, the engine core and front ends read them."""

    def __init__(self, path: str, max_num_seqs: int) -> None:
        """Map the file, which has space for lookups of up to `max_num_seqs`."""
        self._num_entries = max_num_seqs + 1
        self._slot_size = _slot_size(max_num_seqs)
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _file_size(max_num_seqs))
        self._header = memoryview(self._memory).cast("Q")
        self._num_read = 0
        """The version that this end has read last."""

    @property
    def reader(self) -> ReaderState:
        """Whether the engine core reads the lookup; the engine core sets it."""
        return ReaderState(self._header[_STATE])

    @reader.setter
    def reader(self, state: ReaderState) -> None:
        self._header[_STATE] = state

    @property
    def epoch(self) -> int:
        """The epoch of the salts of prompts; the server sets it."""
        return self._header[_EPOCH]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._header[_EPOCH] = epoch

    def write(self, lookup: Sequence[int]) -> None:
        """Write K by number of sequences, from 0 on; for the server."""
        if len(lookup) != self._num_entries:
            msg = f"a lookup for this engine has {self._num_entries} entries, got {len(lookup)}"
            raise ValueError(msg)
        version = self._header[_VERSION] + 1
        entries = bytes(lookup)
        slot = _SLOT_HEAD.pack(version, _checksum(version, entries), len(entries)) + entries
        at = self._slot_at(version)
        self._memory[at : at + len(slot)] = slot
        self._header[_VERSION] = version

    def read_new(self) -> list[int] | None:
        """Return the newest lookup, None if this end has read it before; for its readers, at each step."""
        version = self._header[_VERSION]
        if version == self._num_read:
            return None
        at = self._slot_at(version)
        slot = self._memory[at : at + self._slot_size]
        written, checksum, num_entries = _SLOT_HEAD.unpack_from(slot)
        entries = slot[_SLOT_HEAD.size : _SLOT_HEAD.size + num_entries]
        if written != version or checksum != _checksum(version, entries):
            return None
        self._num_read = version
        return list(entries)

    def close(self) -> None:
        """Unmap the file. May be called more than once."""
        self._header.release()
        self._memory.close()

    def _slot_at(self, version: int) -> int:
        return HEADER_BYTES + version % 2 * self._slot_size


class LookupPublisher:
    """The server's end, with the file until the engine core has mapped it."""

    def __init__(self, max_num_seqs: int, folder: Path | None = None, *, is_kept: bool = False) -> None:
        """Create the file without a lookup, within `folder`, whose owner removes it if it is kept for front ends."""
        handle, self._path = tempfile.mkstemp(prefix="completion-server-", suffix=".speculation", dir=folder)
        self._is_kept = is_kept
        with os.fdopen(handle, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, _file_size(max_num_seqs))  # a full /dev/shm is an error here
        self._shared = SharedLookup(self._path, max_num_seqs)

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """Let an engine core that starts meanwhile find the file. Afterwards it has no name, unless it is kept."""
        os.environ[LOOKUP_ENV] = self._path
        try:
            yield
        finally:
            # A load that was given up may end late, when the next one has published its own file.
            if os.environ.get(LOOKUP_ENV) == self._path:
                del os.environ[LOOKUP_ENV]
            if not self._is_kept:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self._path)

    @property
    def unread_reason(self) -> str:
        """Why the engine core does not read the lookup; "" if it does."""
        match self._shared.reader:
            case ReaderState.READING:
                return ""
            case ReaderState.UNSUPPORTED:
                return "the scheduler of this vLLM no longer reads a lookup of K at each step"
            case ReaderState.ABSENT:
                return "the engine does not read the server's lookup of K"

    def write(self, lookup: Sequence[int], *, is_off: bool = False, epoch: int = 0) -> None:
        """Make K by number of sequences, from 0 on, active from the next step on; do not run the draft model if off.

        The epoch is that of the prompts from now on. It changes first: no prompt of the old one has drafts then.
        """
        self._shared.epoch = epoch
        self._shared.write([0 if is_off else _LIVE, *lookup[1:]])

    def close(self) -> None:
        """Unmap the file. May be called more than once."""
        self._shared.close()


def is_lookup_published() -> bool:
    """Return whether the server has published a lookup for this engine core."""
    return LOOKUP_ENV in os.environ


def open_published_lookup(max_num_seqs: int, *, is_supported: bool) -> SharedLookup | None:
    """Return the engine core's end of the published lookup, None if there is none or the scheduler can't use it."""
    path = os.environ.get(LOOKUP_ENV)
    if path is None:
        return None
    shared = SharedLookup(path, max_num_seqs)
    shared.reader = ReaderState.READING if is_supported else ReaderState.UNSUPPORTED
    return shared if is_supported else None


def _file_size(max_num_seqs: int) -> int:
    return HEADER_BYTES + 2 * _slot_size(max_num_seqs)


def _slot_size(max_num_seqs: int) -> int:
    """Return the bytes of a slot, whole words."""
    num_bytes = _SLOT_HEAD.size + max_num_seqs + 1
    return -(-num_bytes // _WORD) * _WORD


def _checksum(version: int, entries: bytes) -> int:
    return zlib.crc32(entries, version & 0xFFFFFFFF)
