"""The page at `/` in a real, headless Chromium, driven by playwright-core."""

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

MODULES = TOOLS / "code-server" / "node_modules"
DRIVER = ROOT / "tests" / "editors" / "playground_driver.mjs"
ANSWERS_WITHIN_S = 60.0
"""For machines that are busy with other things. The driver's own waits are shorter and name what they wait for."""
ENDS_WITHIN_S = 30.0


class Browser:
    """A tab. Each call waits for what it names, and fails if that does not come."""

    def __init__(self, driver: asyncio.subprocess.Process) -> None:
        self._driver = driver

    async def do(self, command: str, **options: Any) -> Any:
        """Run a command of the driver and return its value."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps({"command": command, **options}).encode() + b"\n")
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                line = await self._driver.stdout.readline()
        except TimeoutError:
            raise AssertionError(f"the driver did not answer {command} {options}") from None
        assert line, f"the driver ended during {command} {options}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    async def open(self, address: str) -> None:
        """Open the page, and wait until it is connected."""
        await self.do("open", url=f"http://{address}/")
        await self.until("document.querySelector('#connection').dataset.state === 'connected'")
        await self.until("document.querySelector('#sessions').textContent !== '–'")

    async def press(self, *keys: str) -> None:
        """Press keys, one after another."""
        for each in keys:
            await self.do("press", keys=each)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return await self.do("evaluate", expression=expression)

    async def until(self, expression: str) -> None:
        """Wait until an expression in the page is true."""
        await self.do("until", expression=expression)

    async def ghost(self, text: str) -> None:
        """Wait until the ghost text is this one, "" for none."""
        await self.until(f"(document.querySelector('.ghost')?.textContent ?? '') === {json.dumps(text)}")

    async def line(self, text: str) -> None:
        """Wait until the cursor's line is this one, without the ghost text."""
        own = "[...document.querySelector('.cm-activeLine').childNodes].filter((each) => each.className !== 'ghost')"
        await self.until(f"{own}.map((each) => each.textContent).join('') === {json.dumps(text)}")


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """Yield an empty tab. The browser's profile and the driver's log are in `folder`."""
    chromium = shutil.which("chromium") or report("chromium not found; on Debian: apt-get install chromium")
    if shutil.which("node") is None:
        report("node not found; on Debian: apt-get install nodejs")
    if not (MODULES / "playwright-core").exists():
        report(f"{MODULES}/playwright-core not found; sh requirements/editor-tools.sh code-server installs it")
    with (folder / "driver.log").open("wb") as log:
        driver = await asyncio.create_subprocess_exec(
            "node", str(DRIVER), chromium, str(MODULES), str(folder / "profile"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
        )  # fmt: skip
    assert driver.stdin is not None
    try:
        yield Browser(driver)
    finally:
        driver.stdin.close()
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                await driver.wait()
        except TimeoutError:
            driver.kill()
            await driver.wait()
