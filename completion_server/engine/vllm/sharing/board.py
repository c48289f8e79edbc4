"""The vitals of a shared engine core, which it writes after each step, and which all of its clients read.

vLLM sends the statistics of a step to one client. A front end without a generation of its own would not even hear that
the engine is idle again.

The file's name is passed on in the environment, as that of the lookup of K.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from completion_server.core.shared_words import SharedWords

BOARD_ENV = "COMPLETION_SERVER_ENGINE_BOARD"
"""Environment variable with the path of the file, set for a core that is to be shared."""

_NUM_RUNNING, _NUM_WAITING, _KV_PARTS = range(3)
_NUM_WORDS = 3
_PARTS = 1_000_000
"""The share of the KV cache is a whole number of these parts."""


class EngineBoard:
    """One process's view of the board."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """Map the file; create it if it is new."""
        self.path = path
        self._shared = (SharedWords.create if is_new else SharedWords)(path, _NUM_WORDS)

    @property
    def num_running(self) -> int:
        """Generations in the batch, of all clients."""
        return int(self._shared.words[_NUM_RUNNING])

    @property
    def num_waiting(self) -> int:
        """Generations in the core's own queue."""
        return int(self._shared.words[_NUM_WAITING])

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return int(self._shared.words[_KV_PARTS]) / _PARTS

    def write(self, num_running: int, num_waiting: int, kv_usage: float) -> None:
        """Write the state after a step; for the core."""
        words = self._shared.words
        words[_NUM_RUNNING], words[_NUM_WAITING], words[_KV_PARTS] = num_running, num_waiting, int(kv_usage * _PARTS)

    @contextmanager
    def published(self) -> Iterator[None]:
        """Let a core that starts meanwhile find the file."""
        os.environ[BOARD_ENV] = str(self.path)
        try:
            yield
        finally:
            # A load that was given up may end late, when the next one has published its own file.
            if os.environ.get(BOARD_ENV) == str(self.path):
                del os.environ[BOARD_ENV]


def open_published_board() -> EngineBoard | None:
    """Return the core's view of the board, None if the core is not to be shared."""
    path = os.environ.get(BOARD_ENV)
    return EngineBoard(Path(path)) if path else None
