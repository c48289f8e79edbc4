"""Reads `admission.quotas_file`, and rereads it when it has changed."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

from completion_server.admission.quota_table import QuotaTable, parse_quotas
from completion_server.core.errors import ConfigError

logger = logging.getLogger(__name__)

POLL_S = 1.0


def load_quotas(path: Path) -> QuotaTable:
    """Return the quotas of a file.

    Raises:
        ConfigError: it can't be read, or has a fault; the message has one line for each, which names the key.

    """
    try:
        return parse_quotas(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        msg = f"admission.quotas_file: {path} can't be read: {reason}"
        raise ConfigError(msg) from error
    except ConfigError as error:
        msg = "\n".join(f"admission.quotas_file: {path}: {line}" for line in str(error).splitlines())
        raise ConfigError(msg) from error


class QuotaFile:
    """Watches the file. A version with a fault is logged once, and the last good one stays."""

    def __init__(self, path: Path) -> None:
        """Remember the file as it is; `table` is what it says.

        Raises:
            ConfigError: see `load_quotas`.

        """
        self._path = path
        self._version = _version(path)
        self.table = load_quotas(path)

    async def run(self, on_change: Callable[[QuotaTable], None], poll_s: float = POLL_S) -> None:
        """Call `on_change` with each new version, until cancelled. Reading blocks another thread, not the loop."""
        while True:
            await asyncio.sleep(poll_s)
            found = await asyncio.to_thread(self._reread)
            if found is not None:
                self.table = found
                on_change(found)

    def _reread(self) -> QuotaTable | None:
        """Return the new version, None if there is none, or none that can be used."""
        version = _version(self._path)
        if version == self._version:
            return None
        self._version = version
        try:
            table = load_quotas(self._path)
        except ConfigError as error:
            logger.error("%s; the quotas stay as they were", "; ".join(str(error).splitlines()))
            return None
        logger.info("admission.quotas_file: %s was reread", self._path)
        return table


def _version(path: Path) -> tuple[int, ...]:
    """Return what differs between versions of a file, () if there is none. A replaced link names another file."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
