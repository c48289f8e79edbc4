"""The first example of docs/client.md runs against a server."""

import asyncio
import re
import subprocess
import sys

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.models import ROOT
from tests.support.server import make_config, run_server

EXAMPLE_TIMEOUT_S = 60.0


async def test_the_example_prints_two_completions() -> None:
    page = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    engine = ScriptedEngine(lambda _request: ("a", " + b", "\n"))
    async with run_server(make_config(), lambda: engine) as server:
        script = example.replace("127.0.0.1:50051", server.ready.address)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(EXAMPLE_TIMEOUT_S):
            output, errors = await process.communicate()
    assert output.decode() == "stop a + b\na + b", errors.decode()
