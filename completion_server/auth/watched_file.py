"""A file that is read again when it changes."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from completion_server.core.errors import ConfigError

logger = logging.getLogger(__name__)

Content = TypeVar("Content")
_State = tuple[int, ...]
"""Identifies a version of a file, or the error that it could not be looked at with."""


class WatchedFile(Generic[Content]):
    """Holds a file's parsed content. While the file is broken or missing, the last good content stays."""

    def __init__(
        self, key: str, path: str, parse: Callable[[bytes], Content], failed: Callable[[str], None], missing: Content
    ) -> None:
        """Name the file by its configuration key. `parse` raises ValueError and may run in another thread.

        `failed` is called with `key` whenever a changed file can't be used. `missing` is the content before `load`.
        """
        self._key = key
        self._path = Path(path)
        self._parse = parse
        self._failed = failed
        self._seen: _State | None = None
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
                msg = f"{self._key}: no file {self._path}"
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
            logger.error("%s: %s can't be used (%s); its last good content stays", self._key, self._path, why)
            self._failed(self._key)
            return False
        if found is None:
            return False
        self.content = found
        logger.info("%s: read again", self._key)
        return True

    def _read_if_changed(self) -> Content | None:
        """Return the new content, None if the file is as it was at the last call, whether that succeeded or not.

        Raises:
            OSError: the file changed and can't be read, or is gone.
            ValueError: the file changed and is broken.

        """
        fault: OSError | None = None
        try:
            status = self._path.stat()
            # A change of the file's rights changes only the last one.
            found: _State = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        except OSError as error:
            found, fault = (error.errno or 0,), error
        if found == self._seen:
            return None
        self._seen = found  # before it is read, so that the next call sees a change meanwhile
        if fault is not None:
            raise fault
        return self._parse(self._path.read_bytes())


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
