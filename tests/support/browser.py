"""A page in a real, headless Chromium, driven by playwright-core through tests/editors/browser_driver.mjs."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.kustomize import TOOLS, report
from tests.support.models import ROOT
from tests.support.waits import named_limit

MODULES = TOOLS / "code-server" / "node_modules"
PAGES = ROOT / "tests" / "editors"
DRIVER = PAGES / "browser_driver.mjs"

ANSWERS_WITHIN_S = 90.0
"""For machines that are busy with other things. The driver's own waits are shorter and name what they wait for."""
ENDS_WITHIN_S = 30.0

Process = asyncio.subprocess.Process


class Page:
    """A page. Each call waits for what it names, and fails if that does not come."""

    def __init__(self, driver: Process) -> None:
        self._driver = driver

    async def do(self, command: str, **options: Any) -> Any:
        """Run a command of the driver and return its value."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps({"command": command, **options}).encode() + b"\n")
        async with named_limit(ANSWERS_WITHIN_S, f"an answer of the driver to {command} {options}"):
            line = await self._driver.stdout.readline()
        assert line, f"the driver ended during {command} {options}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]


@asynccontextmanager
async def driven(folder: Path, page: str) -> AsyncIterator[Process]:
    """Yield the driver of a browser with the commands of `page`, a module. The browser's own files are in `folder`."""
    chromium = shutil.which("chromium") or report("chromium not found; on Debian: apt-get install chromium")
    if shutil.which("node") is None:
        report("node not found; on Debian: apt-get install nodejs")
    if not (MODULES / "playwright-core").exists():
        report(f"{MODULES}/playwright-core not found; sh requirements/editor-tools.sh code-server installs it")
    arguments = (str(DRIVER), chromium, str(MODULES), str(folder), str(PAGES / page))
    async with running(folder / "driver.log", "node", *arguments) as driver:
        yield driver


@asynccontextmanager
async def running(log: Path, *command: str, ends_with_its_input: bool = True) -> AsyncIterator[Process]:
    """Run a process until the end of the block. It ends at the end of its input or is terminated, or else is killed."""
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written, start_new_session=True
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if process.returncode is None and not ends_with_its_input:
            process.terminate()
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
