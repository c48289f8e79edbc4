"""A client in another language needs the folder proto/ alone."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest_asyncio

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.kustomize import TOOLS, report
from tests.support.models import ROOT
from tests.support.server import make_config, run_server

SCRIPT = Path(__file__).with_name("contract_client.mjs")
TIMEOUT_S = 120


@pytest_asyncio.fixture
async def modules() -> Path:
    folder = TOOLS / "contract-node" / "node_modules"
    if shutil.which("node") is None:
        report("node not found")
    if not folder.exists():
        report(f"{folder} not found; make deploy-tools installs it")
    return folder


async def test_a_client_in_node_reads_answers_refusals_and_status_details(modules: Path) -> None:
    async with run_server(make_config(), lambda: ScriptedEngine(lambda _request: ("a", " + b", "\n"))) as server:
        process = await asyncio.create_subprocess_exec(
            "node", SCRIPT, server.ready.address, ROOT / "proto", modules, stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
    found = json.loads(output)
    done, bad, repeated = found["answers"]
    assert done["end"]["finish_reason"] == "FINISH_REASON_STOP"
    assert (bad["sequence"], bad["end"]["finish_reason"]) == ("2", "FINISH_REASON_ERROR")
    assert bad["end"]["error"]["field_violations"][0]["field"] == "max_tokens"
    assert (repeated["sequence"], repeated["event"]) == ("2", "refusal")
    assert repeated["refusal"]["error"]["field_violations"][0]["field"] == "complete.sequence"
    assert found["error"]["code"] == 3
    (bad_request,) = found["error"]["details"]
    violation = {"field": "temperature", "description": "must be from 0 to 2, got -1"}
    assert bad_request == {"BadRequest": {"fieldViolations": [violation]}}
