"""Reads `admission.quotas_file`, and rereads it when it has changed."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from completion_server.admission.quota_table import QuotaTable, parse_quotas
from completion_server.core.errors import ConfigError
from completion_server.core.watched_file import WatchedFile

POLL_S = 1.0


class QuotaFile:
    """Watches the file. A version with a fault is logged once, and the last good one stays."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            ConfigError: it can't be read, or has a fault; the message names the key.

        """
        self._file = WatchedFile(
            "admission.quotas_file", str(path), _parse, lambda _key, _has_failed: None, parse_quotas("")
        )
        self._file.load()

    @property
    def table(self) -> QuotaTable:
        """What the file said when it was read last."""
        return self._file.content

    async def run(self, on_change: Callable[[QuotaTable], None], poll_s: float = POLL_S) -> None:
        """Call `on_change` with each new version, until cancelled."""
        while True:
            await asyncio.sleep(poll_s)
            if await self._file.poll():
                on_change(self.table)


def _parse(data: bytes) -> QuotaTable:
    try:
        return parse_quotas(data.decode())
    except ConfigError as error:
        raise ValueError("; ".join(str(error).splitlines())) from error
