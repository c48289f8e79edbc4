"""One scripted engine in several processes: each has an engine object of its own, and all share its capacity.

Each process writes the load of its own steps into memory that all map, and counts the load of the others in: its steps
take as long as if one engine computed everything, and all generations together are at most `max_num_seqs`. The steps of
two processes are not aligned, so each sees the other's load at the beginning of its own step.
"""

import shutil
import tempfile
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from completion_server.core.shared_words import SharedWords
from completion_server.engine.interface import EngineShare, SpeculationLookup
from completion_server.engine.speculation_control import salted


class Load(NamedTuple):
    """What a step computes, and what waits."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    """Blocks of the KV cache that are reserved."""
    num_decoding: int = 0
    num_prompts: int = 0
    num_prefill_tokens: int = 0


NO_LOAD = Load()

_SIZE = len(Load._fields)


@dataclass(frozen=True, slots=True)
class ScriptedShare(EngineShare):
    """The share of a scripted engine."""

    path: Path
    """The shared memory."""


class SharedCapacity:
    """One process's view of the shared memory: the loads of all processes, and the parent's lookup of K.

    The parent's load comes first, then those of the places.
    """

    def __init__(self, path: Path, num_places: int, max_num_seqs: int, place: int, *, is_new: bool = False) -> None:
        """Map the memory for a place, -1 for the parent; create it if it is new."""
        self._own = (place + 1) * _SIZE
        self._end = (num_places + 1) * _SIZE
        self.path = path
        num_words = self._end + 1 + max_num_seqs + 1
        self._shared = (SharedWords.create if is_new else SharedWords)(path, num_words)

    @classmethod
    def create(cls, num_places: int, max_num_seqs: int, folder: Path | None = None) -> "SharedCapacity":
        """Create the memory, in a folder of its own within `folder`, and return the parent's view."""
        path = Path(tempfile.mkdtemp(prefix="completion-server-", dir=folder)) / "capacity"
        return cls(path, num_places, max_num_seqs, -1, is_new=True)

    @property
    def num_places(self) -> int:
        """Processes beside the parent."""
        return self._end // _SIZE - 1

    def write(self, load: Load) -> None:
        """Write the load of this process."""
        self._shared.words[self._own : self._own + _SIZE] = memoryview(array("Q", load))

    def clear(self, place: int) -> None:
        """Forget the load of a process that has ended."""
        at = (place + 1) * _SIZE
        self._shared.words[at : at + _SIZE] = memoryview(array("Q", NO_LOAD))

    def others(self) -> Load:
        """Return the load of all other processes."""
        loads = self._shared.words[: self._end]
        return Load(*(sum(loads[at::_SIZE]) - loads[self._own + at] for at in range(_SIZE)))

    def publish(self, lookup: SpeculationLookup, _is_off: bool, epoch: int) -> None:
        """Write the active lookup of K and the epoch of the salts; for the parent."""
        words = self._shared.words
        words[self._end] = epoch
        words[self._end + 1 :] = memoryview(array("Q", lookup))

    @property
    def lookup(self) -> SpeculationLookup:
        """The parent's lookup of K."""
        return tuple(self._shared.words[self._end + 1 :])

    def salt(self, cache_salt: str) -> str:
        """Return the salt of a prompt that is computed now; see `EngineSpeculation`."""
        return salted(cache_salt, self._shared.words[self._end])

    def remove(self) -> None:
        """Remove the file. Processes that have mapped it go on to use it."""
        shutil.rmtree(self.path.parent, ignore_errors=True)
