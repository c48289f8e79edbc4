"""File descriptors: the server uses as many as the system allows, and does not spin when there are none left."""

import asyncio
import re
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import grpc
import psutil
import pytest

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.core.descriptors import RESERVE
from tests.support.models import ROOT, TARGET
from tests.support.server import ask, request
from tests.support.server_process import serving

SERVE = (
    "-m", "completion_server", "serve", "--json", "--set", "engine.kind=scripted", "--set", f"engine.model={TARGET}",
    "--set", "server.listen=127.0.0.1:0", "--set", "server.admin_listen=", "--set", "server.metrics_listen=127.0.0.1:0",
)  # fmt: skip
SMALL = ("--set", "admission.max_sessions=8", "--set", "server.max_connections=8")
WINDOW_S = 1.0
BUSY_S = 0.3
"""Processor time within the window: a process that waits takes less, one that spins takes all that it is given."""


def python_with_limits(soft: int, hard: int, *arguments: str) -> list[str]:
    """Return a command that runs Python with these limits on open files."""
    return ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh", sys.executable, *arguments]


async def busy_s(pid: int) -> float:
    """Return the processor time that a process takes in the window."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    await asyncio.sleep(WINDOW_S)
    after = process.cpu_times()
    return (after.user - before.user) + (after.system - before.system)


async def test_connections_leave_descriptors_for_the_servers_other_uses(tmp_path: Path) -> None:
    hard = RESERVE + 8
    command = python_with_limits(128, hard, *SERVE, *SMALL)
    async with serving(tmp_path, command=command) as process:
        ready, server = process.ready, psutil.Process(process.process.pid)
        assert server.rlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        with ExitStack() as stack:
            host, _, port = ready["address"].rpartition(":")
            for _ in range(hard):
                stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            host, _, port = ready["metrics_address"].rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"200 OK" in await asyncio.wait_for(reader.read(), 30)
            writer.close()
            assert await busy_s(server.pid) < BUSY_S
            assert server.num_fds() < hard
        async with grpc.aio.insecure_channel(ready["address"]) as channel:
            answer = await ask(CompletionServiceStub(channel), request(max_tokens=4), timeout=60)
        assert answer.code is grpc.StatusCode.OK


@pytest.mark.parametrize("soft", [64, RESERVE + 99])
def test_more_sessions_than_descriptors_are_refused_at_start(soft: int) -> None:
    limits = ("--set", "admission.max_sessions=100", "--set", "server.max_connections=101")
    command = python_with_limits(soft, RESERVE + 99, *SERVE, *limits)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert re.search(r"admission\.max_sessions: must be at most 99, .*open files.*, got 100", done.stderr)
    assert re.search(r"server\.max_connections: must be at most 99, .*open files.*, got 101", done.stderr)
