"""The TypeScript under editors/: its unit tests, its stubs, and the packed stubs in a plugin on a real server."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import MakeIdentity
from tests.support.kustomize import report
from tests.support.models import ROOT
from tests.support.server import make_config, run_server
from tests.support.vscode import named_limit

EDITORS = ROOT / "editors"
MODULES = EDITORS / "node_modules"
CLIENT = ROOT / "tests" / "editors" / "stubs_client.cjs"
SESSION_CLIENT = ROOT / "tests" / "editors" / "session_client.cjs"
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
        async with named_limit(WITHIN_S, f"the end of {command}"):
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


async def test_the_sources_pass_the_linter() -> None:
    await run("npm", "run", "--silent", "lint", cwd=EDITORS)


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


async def use_session(num_requests: int, **settings: Any) -> Any:
    """Return what the extension's session got."""
    await run("npx", "tsc", "--project", "vscode", cwd=EDITORS)
    session = EDITORS / "vscode" / "out" / "src" / "client" / "session.js"
    output = await run("node", str(SESSION_CLIENT), str(session), json.dumps(settings), str(num_requests), cwd=EDITORS)
    return json.loads(output.splitlines()[-1])  # Node may warn before


async def test_the_session_connects_with_mutual_tls(make_identity: MakeIdentity) -> None:
    ours, theirs = make_identity("server"), make_identity("client")
    tls = {"ca": str(ours.certificate), "certificate": str(theirs.certificate), "key": str(theirs.key)}
    config = make_config(
        f"server.tls.certificate={ours.certificate}",
        f"server.tls.key={ours.key}",
        f"server.tls.client_ca={theirs.certificate}",
    )
    async with run_server(config, lambda: ScriptedEngine(lambda _request: ("a", "\n"))) as server:
        used = await use_session(1, addresses=[server.ready.address], tls=tls)
    assert used == {"texts": ["a"], "errors": [], "events": ["connected"]}


async def test_the_session_loses_nothing_when_the_server_ends_old_streams() -> None:
    config = make_config("server.max_session_age_s=0.5", "admission.user_requests_per_s=0")
    async with run_server(config, lambda: ScriptedEngine(lambda _request: ("a", "\n"))) as server:
        used = await use_session(100, addresses=[server.ready.address])
    assert used["texts"] == ["a"] * 100
    assert used["errors"] == []
    assert set(used["events"]) == {"connected"}
    assert len(used["events"]) > 1, "no stream was old"
