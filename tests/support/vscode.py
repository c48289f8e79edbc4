"""A real VS Code: code-server with the extension of editors/vscode, driven in a headless Chromium."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.kustomize import report
from tests.support.models import ROOT
from tests.support.redis_servers import free_port

MODULES = ROOT / ".tools" / "code-server" / "node_modules"
SERVER = MODULES / "code-server" / "lib" / "vscode" / "out" / "server-main.js"
VSIX = ROOT / "editors" / "vscode" / "completion-server.vsix"
SOURCES = ROOT / "editors" / "vscode" / "src"
DRIVER = ROOT / "tests" / "editors" / "vscode_driver.mjs"

STARTS_WITHIN_S = 90.0
ANSWERS_WITHIN_S = 90.0
"""For machines that are busy with other things. The driver's own waits are shorter and name what they wait for."""
ENDS_WITHIN_S = 30.0


class VSCode:
    """The page of a VS Code. Each call waits for what it names, and fails if that does not come."""

    def __init__(self, driver: asyncio.subprocess.Process) -> None:
        self._driver = driver

    async def do(self, command: str, **options: Any) -> Any:
        """Run a command of the driver and return its value."""
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps({"command": command, **options}).encode() + b"\n")
        async with named_limit(ANSWERS_WITHIN_S, f"an answer of the driver to {command}"):
            line = await self._driver.stdout.readline()
        assert line, f"the driver ended during {command}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]


@asynccontextmanager
async def vscode(folder: Path, workspace: Path, settings: dict[str, Any]) -> AsyncIterator[VSCode]:
    """Yield a VS Code with `workspace` open. Its own files are in `folder`."""
    chromium = shutil.which("chromium") or report("chromium not found")
    if shutil.which("node") is None:
        report("node not found")
    for path, command in ((SERVER, "make editor-tools"), (VSIX, "make vsix")):
        if not path.exists():
            report(f"{path} not found; {command} makes it")
    if VSIX.stat().st_mtime < max(each.stat().st_mtime for each in SOURCES.rglob("*.ts")):
        report(f"{VSIX} is older than its sources; make vsix")
    port, data = free_port(), folder / "data"
    user_settings = data / "data" / "Machine" / "settings.json"
    user_settings.parent.mkdir(parents=True)
    user_settings.write_text(json.dumps(settings))
    options = ("--accept-server-license-terms", "--server-data-dir", str(data))
    await _finished("node", str(SERVER), *options, "--install-extension", str(VSIX))
    listen = ("--host", "127.0.0.1", "--port", str(port), "--without-connection-token")
    async with (
        _running(folder / "code-server.log", "node", str(SERVER), *options, *listen) as server,
        _running(
            folder / "driver.log", "node", str(DRIVER), chromium, str(MODULES),
            f"http://127.0.0.1:{port}/?folder={workspace}", str(folder),
        ) as driver,
    ):  # fmt: skip
        await _listening(server)
        page = VSCode(driver)
        await page.do("open")
        yield page


@asynccontextmanager
async def named_limit(limit_s: float, name: str) -> AsyncIterator[None]:
    """Fail with what was waited for if the block takes longer than a limit."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise AssertionError(f"{name} did not come within {limit_s} s") from None


async def _finished(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        async with named_limit(STARTS_WITHIN_S, f"the end of {command}"):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode()


async def _listening(server: asyncio.subprocess.Process) -> None:
    """Wait for the line that a code-server prints when it listens."""
    assert server.stdout is not None
    async with named_limit(STARTS_WITHIN_S, "the line of a code-server that listens"):
        while line := await server.stdout.readline():
            if b"listening on" in line:
                return
    raise AssertionError("code-server ended before it listened")


@asynccontextmanager
async def _running(log: Path, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process until the end of the block. It ends at the end of its input, or else is killed."""
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written, start_new_session=True
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        if process.returncode is None and str(DRIVER) not in command:
            process.terminate()
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
