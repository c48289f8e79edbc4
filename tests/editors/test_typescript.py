"""The TypeScript under editors/: its unit tests, its stubs, and the packed stubs in a plugin on a real server."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import MakeIdentity
from tests.support.models import ROOT
from tests.support.node_modules import EDITORS, MODULES, install_packed_stubs, require_node, run
from tests.support.server import make_config, run_server

pytestmark = pytest.mark.full

CLIENT = ROOT / "tests" / "editors" / "stubs_client.cjs"
SESSION_CLIENT = ROOT / "tests" / "editors" / "session_client.cjs"


@pytest.fixture(autouse=True)
def node() -> None:
    require_node()


async def test_the_extension_passes_its_unit_tests() -> None:
    output = await run("npm", "test", cwd=EDITORS)
    assert "# fail 0" in output
    assert "# pass 0" not in output


async def test_the_sources_pass_the_linter() -> None:
    await run("npm", "run", "--silent", "lint", cwd=EDITORS)


async def test_stubs_are_what_the_contract_generates() -> None:
    assert "fresh" in await run("sh", "stubs/check_fresh.sh", cwd=EDITORS)


def test_a_workspace_can_have_nothing_more_sent() -> None:
    """VS Code takes settings of the scopes "machine" and "application" from the user alone."""
    manifest = json.loads((EDITORS / "vscode" / "package.json").read_text())
    settings = manifest["contributes"]["configuration"]["properties"]
    of_workspaces = {name for name, each in settings.items() if each.get("scope") not in {"machine", "application"}}
    assert of_workspaces == {f"completionServer.{name}" for name in ("multiLine", "delay", "exclude")}


async def notices_of(*files: Path) -> str:
    """Return what the extension's build writes into NOTICES.txt for bundled files."""
    script = f"import {{ noticesOf }} from {json.dumps(str(EDITORS / 'vscode' / 'notices.mjs'))};"
    script += "console.log(noticesOf(process.argv.slice(1), 'APACHE-2.0 TEXT'));"
    return await run("node", "--input-type=module", "--eval", script, *map(str, files), cwd=EDITORS)


async def test_notices_have_the_licence_of_a_package_that_has_no_file_of_it() -> None:
    notices = await notices_of(MODULES / "@bufbuild/protobuf/dist/esm/wire/varint.js", MODULES / "long/index.js")
    for text in ("Copyright 2008 Google Inc.", "Redistributions in binary form must", "APACHE-2.0 TEXT"):
        assert notices.count(text) == 1


async def test_no_notices_are_written_without_a_licence(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "bare"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"name": "bare", "version": "1.0.0", "license": "Apache-2.0"}')
    (package / "index.js").write_text("module.exports = 1;\n")
    with pytest.raises(AssertionError, match=r"bare 1\.0\.0, Apache-2\.0: no text of its licence was found"):
        await notices_of(package / "index.js")


async def test_a_plugin_uses_the_packed_stubs(tmp_path: Path) -> None:
    await install_packed_stubs(tmp_path)
    package = tmp_path / "node_modules" / "completion-server-stubs"
    assert (package / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert json.loads((package / "package.json").read_text())["peerDependencies"] == {"@grpc/grpc-js": "^1.14"}
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
