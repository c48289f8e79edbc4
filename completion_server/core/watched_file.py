"""A file that is read again when it changes."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from completion_server.core.errors import ConfigError

logger = logging.getLogger(__name__)

Content = TypeVar("Content")
Report = Callable[[str, bool], None]
"""Called with the configuration key of what was read again, and whether that failed."""
_State = tuple[int, ...]
"""Identifies the versions of the files, or the error that one could not be looked at with."""


class WatchedFile(Generic[Content]):
    """Holds a file's parsed content. While the file is broken or missing, the last good content stays."""

    def __init__(
        self,
        key: str,
        path: str,
        parse: Callable[[bytes], Content],
        report: Report,
        missing: Content,
        others: Sequence[str] = (),
    ) -> None:
        """Name the file by its configuration key. `parse` raises ValueError or OSError and may run in another thread.

        `report` hears whenever a changed file is read. `missing` is the content before `load`. `others` are files that
        `parse` reads as well: the file counts as changed when one of them does.
        """
        self._key = key
        self._path = Path(path)
        self._others = tuple(map(Path, others))
        self._parse = parse
        self._report = report
        self._seen: _State | None = None
        self._fault = ""
        """Why it could not be read when that was tried last."""
        self.content = missing

    def load(self, *, may_be_missing: bool = False) -> None:
        """Read the file at the server's start. Blocks.

        Raises:
            ConfigError: it can't be used, or is missing and may not be.

        """
        try:
            self.content = self._read_if_changed() or self.content
        except FileNotFoundError as error:
            if not may_be_missing:
                msg = f"{self._key}: no file {error.filename}"
                raise ConfigError(msg) from error
            logger.warning("%s: no file %s yet", self._key, self._path)
        except (OSError, ValueError) as error:
            msg = f"{self._key}: {self._path} can't be used: {_reason(error)}"
            raise ConfigError(msg) from error

    async def poll(self) -> bool:
        """Read the file again if it changed since the last call, beside the event loop; return whether it was good."""
        try:
            found = await asyncio.to_thread(self._read_if_changed)
        except (OSError, ValueError) as error:
            why = _reason(error)
            if why != self._fault:
                logger.error("%s: %s can't be used (%s); its last good content stays", self._key, self._path, why)
                self._report(self._key, True)
            self._fault = why if self._seen is None else ""
            return False
        if found is None:
            return False
        self.content, self._fault = found, ""
        self._report(self._key, False)
        logger.info("%s: read again", self._key)
        return True

    def _read_if_changed(self) -> Content | None:
        """Return the new content, None if the file is as at the last call, also if it was broken or missing then.

        A file that is there and could not be read, for want of descriptors or because a disk failed, is tried again.

        Raises:
            OSError: the file changed and can't be read, or is gone.
            ValueError: the file changed and is broken.

        """
        fault: OSError | None = None
        try:
            found: _State = tuple(part for path in (self._path, *self._others) for part in _version(path))
        except OSError as error:
            found, fault = (error.errno or 0,), error
        if found == self._seen:
            return None
        self._seen = found  # before it is read, so that the next call sees a change meanwhile
        if fault is not None:
            raise fault
        try:
            return self._parse(self._path.read_bytes())
        except OSError:
            self._seen = None
            raise


def _version(path: Path) -> _State:
    status = path.stat()
    # A change of the file's rights changes only the last one.
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
