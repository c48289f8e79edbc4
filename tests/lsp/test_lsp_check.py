"""The command: `--check` in words, its exit status, and its help."""

import asyncio
import sys
from pathlib import Path

import grpc
import pytest

from completion_client import Endpoint, Token
from completion_lsp.check import check
from completion_lsp.cli import main
from completion_lsp.link import Servers
from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import make_identity_in
from tests.support.guarded_replica import run_guarded
from tests.support.oracle_server import run_oracle
from tests.support.server import make_config, run_server

TIMEOUT_S = 60.0
NOBODY = "127.0.0.1:1"


async def checked(*endpoints: Endpoint) -> tuple[bool, str]:
    """Return whether a server answers, and the report."""
    return await check(Servers(endpoints))


async def test_a_server_that_answers_and_what_would_be_shown() -> None:
    async with run_server(make_config(), lambda: ScriptedEngine(lambda _request: ["return n", "\n    "])) as server:
        works, output = await checked(Endpoint(server.ready.address))
    first, *shown = output.splitlines()
    assert works
    assert first.startswith(f"{server.ready.address} answers, in ")
    assert first.endswith("An editor would show the part behind the cursor (|) as ghost text:")
    assert shown[:2] == ["    def fibonacci(n):", "        |return n"]


async def test_one_server_of_several_is_enough_and_each_is_described() -> None:
    async with run_oracle() as (_oracle, address):
        works, output = await checked(Endpoint(NOBODY), Endpoint(address))
    assert works
    assert f"{NOBODY} can't be reached.\n    There is no connection" in output
    assert f"{address} answers" in output


async def test_wrong_certificates_are_explained(tmp_path: Path) -> None:
    identity, other = make_identity_in(tmp_path, "server"), make_identity_in(tmp_path, "other")
    async with run_oracle(identity.server_credentials()) as (_oracle, address):
        for authority, said in (
            (None, "give the certificate of its authority with --tls-ca FILE"),
            (other.certificate, "not signed by an authority in the file of --tls-ca"),
            (identity.certificate, ""),
        ):
            works, output = await checked(Endpoint(address, authority))
            assert works is not bool(said)
            assert said in output


async def test_a_token_that_is_missing_refused_or_lacks_the_scope_is_explained() -> None:
    async with run_guarded() as (server, address):
        for command, status, said in (
            ("echo good", grpc.StatusCode.UNAUTHENTICATED, f"{address} answers"),
            (
                "",
                grpc.StatusCode.UNAUTHENTICATED,
                "was reached, but wants a token: there is none.\n    Give one with --",
            ),
            ("echo bad", grpc.StatusCode.UNAUTHENTICATED, "the server refused the token of the command echo: it is un"),
            ("echo bad", grpc.StatusCode.PERMISSION_DENIED, "does not allow it: it is unknown.\n    Completions need"),
        ):
            server.status = status
            token = Token.of_command(command) if command else None
            works, output = await checked(Endpoint(address, token=token))
            assert works is (command == "echo good")
            assert said in output
            assert "bad" not in output


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--server", "a,,b"), 2, "error: --server: expected ADDRESS[,ADDRESS...], got 'a,,b'"),
        (("--server", "a", "--tls-key", "x.pem"), 2, "error: --tls-cert: certificate and key must be given together"),
        (("--user", "José"), 2, "error: --user: only printable ASCII can be sent"),
        (("--tenant", "José"), 2, "error: --tenant: only printable ASCII can be sent"),
        (("--log-file", "/nowhere/a"), 2, "error: --log-file: /nowhere/a can't be written: No such file or directory"),
        (("--token-command", ""), 2, "completion-lsp: error: --token-command: there is no command"),
        (("--server", "example.com"), 2, "COMPLETION_TOKEN is not sent to example.com:50051 without TLS"),
        (("--help",), 0, '"languagesOff": ["markdown"]'),
    ],
)
def test_wrong_arguments_name_the_flag(
    arguments: tuple[str, ...], status: int, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COMPLETION_TOKEN", "t")
    monkeypatch.setattr("completion_lsp.cli._log_to", lambda path: path and path.open("w"))
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == status
    assert said in "".join(capsys.readouterr())


async def test_the_command_ends_when_its_editor_does_and_checks() -> None:
    async with run_oracle() as (_oracle, address):
        command, pipe = (sys.executable, "-m", "completion_lsp", "--server", address), asyncio.subprocess.PIPE
        checking = await asyncio.create_subprocess_exec(*command, "--check", stdout=pipe)
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        params = '{"capabilities": {}, "processId": null, "rootUri": null}'
        for body in (
            f'{{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {params}}}',
            '{"jsonrpc": "2.0", "method": "initialized", "params": {}}',
        ):
            process.stdin.write(f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await process.stdout.readline()
                process.stdin.close()
                assert await process.wait() == 0
                output, _ = await checking.communicate()
        finally:
            for each in (process, checking):
                if each.returncode is None:
                    each.kill()
    assert checking.returncode == 0
    assert f"{address} answers" in output.decode()
