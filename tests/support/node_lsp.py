"""A language client that is not ours: VS Code's library of the protocol, in Node, with scenarios of a script."""

import asyncio
import json
import shutil
import sys
from typing import Any

from tests.support.kustomize import TOOLS, report
from tests.support.models import ROOT
from tests.support.vscode import named_limit

CLIENT = ROOT / "tests" / "lsp" / "lsp_client.mjs"
TIMEOUT_S = 60.0

Json = dict[str, Any]


async def play(address: str, scenario: str) -> Json:
    """Return what the client saw in a scenario of its script, with completion-lsp on the server at an address."""
    modules = TOOLS / "lsp-node" / "node_modules"
    if shutil.which("node") is None:
        report("node not found")
    if not modules.exists():
        report(f"{modules} not found; make editor-tools installs it")
    bridge = (sys.executable, "-m", "completion_lsp", "--server", address)
    process = await asyncio.create_subprocess_exec(
        "node", CLIENT, modules, scenario, *bridge, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with named_limit(TIMEOUT_S, f"the end of the scenario {scenario}"):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    seen: Json = json.loads(output)
    return seen
