"""Vim asks as llama.vim does, with a script of ours, and shows the answer."""

import asyncio
import json
import os
import shutil
from pathlib import Path

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.http_clients import HTTP
from tests.support.kustomize import report
from tests.support.server import RunningServer, make_config, run_server

SCRIPT = Path(__file__).with_name("infill.vim")
ENDS_WITHIN_S = 60.0
DOCUMENT = "def f(a, b):\n    return \n\nprint(f(1, 2))\n"
WORDS = ("a + b", "\n", "\n\n", "x = 1")


def ended(server: RunningServer, outcome: str, trigger: str) -> float:
    return server.count("completion_requests_total", outcome=outcome, trigger=trigger, shed_reason="")


async def test_vim_shows_an_answer_asks_ahead_and_inserts_it(tmp_path: Path) -> None:
    vim = shutil.which("vim")
    if vim is None:
        report("vim not found")
    document, log = tmp_path / "example.py", tmp_path / "log"
    document.write_text(DOCUMENT)
    async with run_server(make_config(HTTP), lambda: ScriptedEngine(lambda _request: WORDS)) as server:
        process = await asyncio.create_subprocess_exec(
            str(vim), "-N", "-u", "NONE", "-i", "NONE", "-n", "-es", "-S", str(SCRIPT), str(document),
            stdin=asyncio.subprocess.DEVNULL,
            env={**os.environ, "INFILL_URL": f"http://{server.ready.http_address}/infill", "INFILL_LOG": str(log)},
        )  # fmt: skip
        await asyncio.wait([waiting := asyncio.create_task(process.wait())], timeout=ENDS_WITHIN_S)
        if not waiting.done():
            process.kill()
        assert waiting.done(), f"Vim did not end within {ENDS_WITHIN_S} s"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        seen = {name: value for line in lines for name, value in line.items()}
        assert seen["warm"] == ""
        assert seen["shown"].keys() == {"content", "timings/predicted_ms", "tokens_cached"}
        assert seen["shown"]["content"] == "a + b"
        assert seen["virtual"] == 1
        assert seen["ahead"] == "a + b"  # the script says the same again
        assert seen["document"] == DOCUMENT.replace("return ", "return a + b").splitlines()
        assert [ended(server, "stop", trigger) for trigger in ("automatic", "prefetch")] == [1, 1]
        assert ended(server, "superseded", "automatic") == 0
