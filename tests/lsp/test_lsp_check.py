"""The command: `--check` in words, its exit status, and its help."""

import asyncio
import sys
from pathlib import Path

from completion_server.engine.scripted.engine import ScriptedEngine
from tests.support.certificates import make_identity_in
from tests.support.oracle_server import run_oracle
from tests.support.server import make_config, run_server

TIMEOUT_S = 60.0
NOBODY = "127.0.0.1:1"


async def run(*arguments: str | Path) -> tuple[int | None, str]:
    """Return the exit status of the command, and what it prints."""
    command, pipe = (sys.executable, "-m", "completion_lsp", *arguments), asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
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
