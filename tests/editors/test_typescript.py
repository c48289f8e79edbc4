"""The TypeScript under editors/: its unit tests, its stubs, and the packed stubs in a plugin on a real server."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.kustomize import report
from tests.support.models import ROOT
from tests.support.server import make_config, run_server

EDITORS = ROOT / "editors"
MODULES = EDITORS / "node_modules"
CLIENT = ROOT / "tests" / "editors" / "stubs_client.cjs"
WITHIN_S = 100.0


@pytest.fixture(autouse=True)
def node() -> None:
    if shutil.which("npm") is None:
        report("npm not found")
    if not MODULES.exists():
        report(f"{MODULES} not found; make vsix installs it")


async def run(*command: str, cwd: Path) -> str:
    """Run a command; return its output, and fail with it if the command fails."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=os.environ | {"PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_the_extension_passes_its_unit_tests() -> None:
    output = await run("npm", "test", cwd=EDITORS)
    assert "# fail 0" in output
    assert "# pass 0" not in output


async def test_stubs_are_what_the_contract_generates() -> None:
    assert "fresh" in await run("sh", "stubs/check_fresh.sh", cwd=EDITORS)


async def test_a_plugin_uses_the_packed_stubs(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "completion-server-stubs"
    (tarball,) = json.loads(
        await run("npm", "pack", "--json", "--silent", f"--pack-destination={tmp_path}", cwd=EDITORS / "stubs")
    )
    await run("tar", "xzf", tarball["filename"], cwd=tmp_path)
    package.parent.mkdir()
    (tmp_path / "package").rename(package)
    for dependency in ("@bufbuild", "@grpc"):
        (package.parent / dependency).symlink_to(MODULES / dependency)
    shutil.copy(CLIENT, tmp_path)
    async with run_server(make_config(), lambda: ScriptedEngine(lambda _request: ("a", " + b", "\n"))) as server:
        output = await run("node", CLIENT.name, server.ready.address, cwd=tmp_path)
    assert json.loads(output) == {"text": "a + b", "finishReason": "STOP", "field": "temperature"}
