"""The examples of docs/client.md and README.md run against a server."""

import asyncio
import re
import subprocess
import sys

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.models import ROOT
from tests.support.server import make_config, run_server

EXAMPLE_TIMEOUT_S = 60.0


@pytest.mark.parametrize(
    ("page", "printed"), [("docs/client.md", "stop a + b\na + b"), ("README.md", "a + b\n")], ids=["page", "readme"]
)
async def test_the_example_prints_what_the_server_completes(page: str, printed: str) -> None:
    example = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)[0]
    engine = ScriptedEngine(lambda _request: ("a", " + b", "\n"))
    async with run_server(make_config(), lambda: engine) as server:
        assert "127.0.0.1:50051" in example
        script = example.replace("127.0.0.1:50051", server.ready.address)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(EXAMPLE_TIMEOUT_S):
            output, errors = await process.communicate()
    assert output.decode() == printed, errors.decode()
