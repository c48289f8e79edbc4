"""`completion-server serve` as an operator runs it: a process of its own, with its ready line and its log."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.models import ROOT

READY_WITHIN_S = 120.0
"""For a scripted engine, on machines that are busy with other things."""
ENDS_WITHIN_S = 30.0
COMMAND = (sys.executable, "-m", "completion_server")


@dataclass
class ServingProcess:
    """A process that has printed its ready line."""

    process: asyncio.subprocess.Process
    line: bytes
    log: Path
    """What it writes to standard error."""

    @property
    def ready(self) -> dict[str, Any]:
        """The ready line of `--json`."""
        found: dict[str, Any] = json.loads(self.line)
        return found

    async def ended(self, within_s: float = ENDS_WITHIN_S) -> int:
        """Wait for the end of the process; return its exit status."""
        await asyncio.wait([waiting := asyncio.create_task(self.process.wait())], timeout=within_s)
        assert waiting.done(), f"the server did not end within {within_s} s: {self.log.read_text()}"
        return waiting.result()


def flags(*settings: str) -> list[str]:
    """Return settings as arguments of `serve`."""
    return [part for setting in settings for part in ("--set", setting)]


@asynccontextmanager
async def serving(
    folder: Path, *arguments: str, command: Sequence[str] = (*COMMAND, "serve"), within_s: float = READY_WITHIN_S
) -> AsyncIterator[ServingProcess]:
    """Run a server until its ready line, and kill it afterwards if it still runs. Its log is in `folder`."""
    log = folder / "log"
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *command, *arguments, stdout=subprocess.PIPE, stderr=written, cwd=ROOT
        )
    assert process.stdout is not None
    reading = asyncio.create_task(process.stdout.readline())
    try:
        await asyncio.wait([reading], timeout=within_s)
        assert reading.done(), f"no ready line within {within_s} s: {log.read_text()}"
        assert reading.result(), f"the server ended before it was ready: {log.read_text()}"
        yield ServingProcess(process, reading.result(), log)
    finally:
        reading.cancel()
        if process.returncode is None:
            process.kill()
            await asyncio.wait_for(process.wait(), ENDS_WITHIN_S)
