"""`completion-server playground`: finds a running server's page, or says what is wrong."""

import asyncio
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from completion_server.client.playground_command import playground
from completion_server.config import load_config
from completion_server.core.credential import Scope
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.server_commands import page_url
from tests.support.authentication import KnownCallers, verified
from tests.support.certificates import MakeIdentity
from tests.support.http_clients import HTTP
from tests.support.server import make_config, run_server


async def run(url: str, *options: str, **variables: str) -> Result:
    arguments = ["--url", url, "--no-open", *options]
    return await asyncio.to_thread(CliRunner().invoke, playground, arguments, env=variables)


async def test_the_page_of_a_running_server_is_named() -> None:
    async with run_server(make_config(HTTP), ScriptedEngine) as server:
        url = f"http://{server.ready.http_address}/"
        found = await run(url)
        assert (found.exit_code, found.output) == (0, f"{url}\n")
        other = await run(f"{url}v1/models")
        assert other.exit_code == 1
        assert "is no page of a completion-server" in other.output
        missing = await run(f"{url}nothing")
        assert "HTTP status 404" in missing.output


async def test_a_token_is_checked_and_never_in_the_address(tmp_path: Path) -> None:
    (good := tmp_path / "token").write_text("ann\n")
    known = KnownCallers({"ann": verified("ann"), "admin": verified("dora", Scope.ADMIN)})
    async with run_server(make_config(HTTP), ScriptedEngine, known) as server:
        url = f"http://{server.ready.http_address}/"
        for found in (await run(url, "--token-file", str(good)), await run(url, COMPLETION_TOKEN="ann")):
            assert (found.exit_code, found.output) == (0, f"{url}\n")
        without = await run(url)
        assert without.exit_code == 0
        assert "The page asks for a token" in without.output
        for token, reason in (
            ("forged", "unknown or has expired"),
            ("admin", "lacks the scope complete"),
            ("a\nb", ""),
        ):
            refused = await run(url, "--token", token)
            assert refused.exit_code == 1
            assert "the server refuses the token: " in refused.output
            assert reason in refused.output


async def test_without_a_server_it_says_how_to_start_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    result = await run(f"http://127.0.0.1:{port}/")
    assert result.exit_code == 1
    assert "start one: make serve" in result.output


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1:8012", "http://127.0.0.1:8012/"),
        ("[::1]:8012", "http://[::1]:8012/"),
        ("0.0.0.0:8012", "http://localhost:8012/"),
        ("10.1.2.3:8012", "http://10.1.2.3:8012/"),
    ],
)
def test_the_ready_line_has_an_address_for_a_browser(address: str, url: str) -> None:
    assert page_url(address, load_config(None, [], {})) == url


def test_with_tls_the_address_has_the_certificates_name(make_identity: MakeIdentity) -> None:
    server = make_identity("server", "completions.example")
    settings = [f"server.tls.certificate={server.certificate}", f"server.tls.key={server.key}"]
    config = load_config(None, settings, {})
    assert page_url("10.1.2.3:8012", config) == "https://completions.example:8012/"
    assert page_url("127.0.0.1:8012", config) == "http://127.0.0.1:8012/"
