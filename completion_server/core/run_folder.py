"""The folder for what the processes of one server share: sockets, and files that they map. It ends with the server."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from completion_server.core.errors import ConfigError

_MEMORY = Path("/dev/shm")
_PREFIX = "completion-server-run-"
_LOCK = "lock"


class RunFolder:
    """A folder of this user's alone, held by a lock. What a killed server left, the next one of the user removes."""

    def __init__(self) -> None:
        """Make the folder, and remove those of servers that were killed.

        Raises:
            ConfigError: it can't be made.

        """
        # In memory where possible: the pages of a file elsewhere would be written to a disk again and again.
        place = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        _remove_left(place)
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            new = self.path / "new"
            self._lock = new.open("xb")  # held until the end of this process
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            new.rename(self.path / _LOCK)  # one without this name is still being made
        except OSError as error:
            msg = f"no folder for the server's processes can be made in {place} (see TMPDIR): {error.strerror or error}"
            raise ConfigError(msg) from error

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder. May be called more than once, also from a thread or a signal handler."""
        _remove(self.path)
        self._lock.close()


def _remove_left(place: Path) -> None:
    """Remove the folders whose locks nobody holds any more."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid != os.geteuid():  # others can make what looks like one, and a pipe in it
                continue
            lock = os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)
            finally:
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder, its lock last: what is left by a process killed meanwhile is found by it."""
    with contextlib.suppress(OSError):
        for each in folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
            elif each.name != _LOCK:
                each.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
