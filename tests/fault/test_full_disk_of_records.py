"""A disk without room for the log, the usage records and the audit log: every request is answered and counted."""

import asyncio
import json
import resource
import subprocess
from pathlib import Path

import grpc
import psutil

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.models import TARGET
from tests.support.server import ask, request
from tests.support.server_process import COMMAND, flags, serving

FULL_AT_BYTES = 8 * 1024
"""How long a file may be until there is room again."""
NUM_FULL, NUM_AFTER = 150, 10
SETTINGS = (
    "engine.kind=scripted", "engine.scripted_times=instant", f"engine.model={TARGET}", "server.listen=127.0.0.1:0",
    "server.admin_listen=", "server.metrics_listen=", "log.level=debug", "admission.user_requests_per_s=0",
    "admission.user_tokens_per_s=0", "admission.users_per_peer=0",
)  # fmt: skip


async def ask_all(stub: CompletionServiceStub, first: int, num: int) -> None:
    for sequence in range(first, first + num):
        answer = await ask(stub, request(sequence=sequence), metadata=(("x-user-id", "ann"),))
        assert answer.code is grpc.StatusCode.OK


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


async def test_usage_and_audit_lose_no_request_on_a_full_disk(tmp_path: Path) -> None:
    secret, usage, audit = tmp_path / "secret", tmp_path / "usage.jsonl", tmp_path / "audit.jsonl"
    secret.write_bytes(b"s" * 32)
    files = {"pseudonym_secret_file": secret, "usage_file": usage, "audit_file": audit}
    records = [f"records.{name}={path}" for name, path in files.items()]
    no_room = ("sh", "-c", f'ulimit -Sf {FULL_AT_BYTES // 512} && exec "$@"', "sh", *COMMAND, "serve")
    async with serving(tmp_path, "--json", *flags(*SETTINGS, *records), command=no_room) as server:
        process = psutil.Process(server.process.pid)
        process.rlimit(resource.RLIMIT_FSIZE, (FULL_AT_BYTES, resource.RLIM_INFINITY))
        async with grpc.aio.insecure_channel(server.ready["address"]) as channel:
            stub = CompletionServiceStub(channel)
            await ask_all(stub, 1, NUM_FULL)
            assert usage.stat().st_size <= FULL_AT_BYTES
            process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await ask_all(stub, 1 + NUM_FULL, NUM_AFTER)
        server.process.terminate()
        assert await server.ended() == 0
    added = await asyncio.to_thread(run, "usage", "--json", "--by", "tenant", str(usage))
    assert added.returncode == 0, added.stderr
    assert sum(json.loads(line)["requests"] for line in added.stdout.splitlines()) == NUM_FULL + NUM_AFTER
    verified = await asyncio.to_thread(run, "audit", "verify", str(audit))
    assert verified.returncode == 0, verified.stdout
    assert "can be written again" in server.log.read_text()
