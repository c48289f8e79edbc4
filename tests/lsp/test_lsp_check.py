"""The command: `--check` in words, its exit status, and its help."""

import asyncio
import os
import sys
from pathlib import Path

import grpc

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import make_identity_in
from tests.support.guarded_replica import run_guarded
from tests.support.oracle_server import run_oracle
from tests.support.server import make_config, run_server

TIMEOUT_S = 60.0
NOBODY = "127.0.0.1:1"


async def run(*arguments: str | Path, token: str = "") -> tuple[int | None, str]:
    """Return the exit status of the command, and what it prints."""
    command, pipe = (sys.executable, "-m", "completion_lsp", *arguments), asyncio.subprocess.PIPE
    variables = os.environ | {"COMPLETION_TOKEN": token}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=asyncio.subprocess.STDOUT, env=variables
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, output.decode()


async def test_a_server_that_answers_and_what_would_be_shown() -> None:
    async with run_server(make_config(), lambda: ScriptedEngine(lambda _request: ["return n", "\n    "])) as server:
        status, output = await run("--server", server.ready.address, "--check")
    first, *shown = output.splitlines()
    assert status == 0
    assert first.startswith(f"{server.ready.address} answers, in ")
    assert first.endswith("An editor would show the part behind the cursor (|) as ghost text:")
    assert shown[:2] == ["    def fibonacci(n):", "        |return n"]


async def test_one_server_of_several_is_enough_and_each_is_described() -> None:
    async with run_oracle() as (_oracle, address):
        status, output = await run("--server", f"{NOBODY},{address}", "--check")
    assert status == 0
    assert f"{NOBODY} can't be reached.\n    There is no connection" in output
    assert f"{address} answers" in output


async def test_no_server_and_wrong_certificates_are_explained(tmp_path: Path) -> None:
    identity, other = make_identity_in(tmp_path, "server"), make_identity_in(tmp_path, "other")
    async with run_oracle(identity.server_credentials()) as (_oracle, address):
        plain = await run("--server", address, "--check")
        wrong = await run("--server", address, "--tls-ca", other.certificate, "--check")
        right = await run("--server", address, "--tls-ca", identity.certificate, "--check")
    assert (plain[0], wrong[0], right[0]) == (1, 1, 0)
    assert "give the certificate of its authority with --tls-ca FILE" in plain[1]
    assert "not signed by an authority in the file of --tls-ca" in wrong[1]


async def test_a_token_that_is_missing_refused_or_lacks_the_scope_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "token"
    await asyncio.to_thread(file.write_text, "good")
    async with run_guarded() as (server, address):
        check = ("--server", address, "--check")
        good = await run(*check, "--token-file", file)
        variable = await run(*check, token="good")
        missing = await run(*check)
        refused = await run(*check, "--token-command", "echo bad-tok")
        server.status = grpc.StatusCode.PERMISSION_DENIED
        denied = await run(*check, "--token-command", "echo bad-tok")
    assert [each[0] for each in (good, variable, missing, refused, denied)] == [0, 0, 1, 1, 1]
    assert (
        f"{address} was reached, but wants a token: there is none.\n    Give one with --token-file FILE" in missing[1]
    )
    assert f"{address} was reached, but the server refused the token of the command echo: it is unknown." in refused[1]
    assert f"{address} knows you, but does not allow it: it is unknown.\n    Completions need the scope" in denied[1]
    assert "bad-tok" not in refused[1] + denied[1]


async def test_a_token_is_not_sent_in_plain_text() -> None:
    status, output = await run("--server", "example.com", "--check", token="t")
    assert status == 2
    assert "the token of the environment variable COMPLETION_TOKEN is not sent to example.com:50051 without" in output
    status, output = await run("--server", "localhost", "--token-command", "")
    assert (status, output.splitlines()[-1]) == (2, "completion-lsp: error: --token-command: there is no command")


async def test_wrong_arguments_name_the_flag() -> None:
    status, output = await run("--server", "a,,b")
    assert status == 2
    assert "error: --server: expected ADDRESS[,ADDRESS...], got 'a,,b'" in output
    status, output = await run("--server", "a", "--tls-key", "x.pem")
    assert status == 2
    assert "error: --tls-cert: certificate and key must be given together" in output
    for flag in ("--user", "--tenant"):
        status, output = await run("--server", "a", flag, "José")
        assert (status, output.splitlines()[-1]) == (
            2,
            f"completion-lsp: error: {flag}: only printable ASCII can be sent",
        )
    status, output = await run("--server", "a", "--log-file", "/nowhere/lsp.log")
    assert (status, output.splitlines()[-1]) == (
        2,
        "completion-lsp: error: --log-file: /nowhere/lsp.log can't be written: No such file or directory",
    )


async def test_the_command_ends_when_its_editor_does() -> None:
    async with run_oracle() as (_oracle, address):
        command, pipe = (sys.executable, "-m", "completion_lsp", "--server", address), asyncio.subprocess.PIPE
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
        finally:
            if process.returncode is None:
                process.kill()


async def test_help_teaches() -> None:
    status, output = await run("--help")
    assert status == 0
    assert "completion-lsp --server 127.0.0.1:50051 --check" in output
    assert '"languagesOff": ["markdown"]' in output
