"""Tabby's own client for editors, as a language server and with its line protocol, against a running server."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.http_clients import HTTP
from tests.support.kustomize import TOOLS, report
from tests.support.server import RunningServer, make_config, run_server

ANSWERS_WITHIN_S = 60.0
TEXT = "def f(a, b):\n    return a + \n\nprint(f(1, 2))\n"
WORDS = ("b", " * 2", "\n")


@pytest.fixture
def agent() -> Path:
    path = TOOLS / "tabby-agent" / "node_modules" / "tabby-agent" / "dist" / "cli.js"
    if shutil.which("node") is None:
        report("node not found")
    if not path.exists():
        report(f"{path} not found; make deploy-tools installs it")
    return path


@asynccontextmanager
async def running(agent: Path, home: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the agent with a home of its own, and kill it afterwards."""
    process = await asyncio.create_subprocess_exec(
        "node", agent, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def configure(home: Path, server: RunningServer) -> None:
    """Write the three lines that a user writes; and keep the agent from sending statistics anywhere."""
    folder = home / ".tabby-client" / "agent"
    folder.mkdir(parents=True)
    settings = f'[server]\nendpoint = "http://{server.ready.http_address}"\ntoken = "any"\n'
    (folder / "config.toml").write_text(f"{settings}[anonymousUsageTracking]\ndisable = true\n")


async def test_the_agent_reports_what_its_user_did(agent: Path, tmp_path: Path) -> None:
    async with run_server(make_config(HTTP), lambda: ScriptedEngine(lambda _request: WORDS)) as server:
        configure(tmp_path, server)
        async with running(agent, tmp_path) as process:
            number = 0

            async def call(function: str, *arguments: Any) -> Any:
                """Call a function of the agent and return its result; notifications have the number 0."""
                nonlocal number
                number += 1
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(json.dumps([number, {"func": function, "args": arguments}]).encode() + b"\n")
                while True:
                    answered, result = json.loads(await process.stdout.readline())
                    if answered == number:
                        return result

            assert await call("initialize", {})
            place = {"filepath": "/project/example.py", "language": "python", "text": TEXT, "position": 28}
            completion = await call("provideCompletions", place | {"manually": True})
            assert completion["choices"][0]["text"] == "b * 2"
            event = {"completion_id": completion["id"], "choice_index": 0}
            for what in ({"type": "view"}, {"type": "select", "select_kind": "line"}):
                assert await call("postEvent", event | what)
        assert server.count("completion_feedback_total", kind="shown") == 1
        assert server.count("completion_feedback_total", kind="accepted_line") == 1
