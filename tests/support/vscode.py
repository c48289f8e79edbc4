"""A real VS Code in a browser: code-server with the extension of editors/vscode."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.browser import MODULES, Page, Process, driven, running
from tests.support.kustomize import report
from tests.support.models import ROOT
from tests.support.redis_servers import free_port
from tests.support.waits import named_limit

SERVER = MODULES / "code-server" / "lib" / "vscode" / "out" / "server-main.js"
VSIX = ROOT / "editors" / "vscode" / "completion-server.vsix"
SOURCES = ROOT / "editors" / "vscode" / "src"

STARTS_WITHIN_S = 90.0


@asynccontextmanager
async def vscode(folder: Path, workspace: Path, settings: dict[str, Any]) -> AsyncIterator[Page]:
    """Yield a VS Code with `workspace` open. Its own files are in `folder`."""
    if shutil.which("node") is None:
        report("node not found; on Debian: apt-get install nodejs")
    for path, command in ((SERVER, "make editor-tools"), (VSIX, "make vsix")):
        if not path.exists():
            report(f"{path} not found; {command} makes it")
    if VSIX.stat().st_mtime < max(each.stat().st_mtime for each in SOURCES.rglob("*.ts")):
        report(f"{VSIX} is older than its sources; make vsix")
    port, data = free_port(), folder / "data"
    user_settings = data / "data" / "Machine" / "settings.json"
    user_settings.parent.mkdir(parents=True)
    user_settings.write_text(json.dumps(settings))
    command = ("node", str(SERVER), "--accept-server-license-terms", "--server-data-dir", str(data))
    await _finished(*command, "--install-extension", str(VSIX))
    listen = ("--host", "127.0.0.1", "--port", str(port), "--without-connection-token")
    async with (
        running(folder / "code-server.log", *command, *listen, ends_with_its_input=False) as server,
        driven(folder, "vscode_page.mjs") as driver,
    ):
        await _listening(server)
        page = Page(driver)
        await page.do("open", url=f"http://127.0.0.1:{port}/?folder={workspace}")
        yield page


async def _finished(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        async with named_limit(STARTS_WITHIN_S, f"the end of {command}"):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode()


async def _listening(server: Process) -> None:
    """Wait for the line that a code-server prints when it listens."""
    assert server.stdout is not None
    async with named_limit(STARTS_WITHIN_S, "the line of a code-server that listens"):
        while line := await server.stdout.readline():
            if b"listening on" in line:
                return
    raise AssertionError("code-server ended before it listened")
