"""Only the named ports are open, also for a user without rights in a file system that can't be written."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import psutil
import pytest

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.models import ROOT, TARGET
from tests.support.server import ask, request
from tests.support.server_process import COMMAND, flags, serving

SETTINGS = (
    "engine.kind=scripted", f"engine.model={TARGET}", "server.listen=127.0.0.1:0", "server.admin_listen=127.0.0.1:0",
    "server.metrics_listen=127.0.0.1:0", "server.http_listen=127.0.0.1:0",
)  # fmt: skip
ADDRESSES = ("address", "admin_address", "metrics_address", "http_address")
NOBODY = "65534"
SCRIPT = """
set -e
mount -t tmpfs -o mode=1777 none /tmp
if [ -n "$hidden" ]; then
    mkdir /tmp/python
    mount --bind "$python" /tmp/python
    mount -t tmpfs -o mode=755 none "$hidden"
    mkdir -p "$python"
    mount --move /tmp/python "$python"
fi
mount -o remount,bind,ro /
exec "$@"
"""
"""Runs a command in a mount namespace of its own. An interpreter in a home that others can't enter stays readable."""


def without_rights(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command that runs another as nobody, without capabilities, in a read-only root."""
    parents = [each for each in Path(sys.base_prefix).parents if not each.stat().st_mode & stat.S_IXOTH]
    python = (f"python={sys.base_prefix}", f"hidden={parents[-1] if parents else ''}")
    drop = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", "--inh-caps=-all")
    return ("unshare", "--mount", "env", *python, "sh", "-c", SCRIPT, "sh", *drop, "env", "HOME=/tmp", *command)


def why_not() -> str:
    """Return why this process can't run a command so, "" if it can."""
    if os.geteuid() != 0:
        return "needs root, to give up its rights"
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        return "needs unshare and setpriv"
    probe = without_rights((*COMMAND[:1], "-c", f"open({str(TARGET / 'config.json')!r}).close()"))
    done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    return done.stderr.strip()[-200:] if done.returncode else ""


def listening_ports(pid: int) -> set[int]:
    """Return the TCP and UDP ports on which a process and its children can be reached."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    found = [each for process in processes for each in process.net_connections("inet")]
    return {each.laddr.port for each in found if each.status in {psutil.CONN_LISTEN, psutil.CONN_NONE}}


@pytest.mark.parametrize("has_rights", [True, pytest.param(False, marks=pytest.mark.full)])
async def test_only_the_named_ports_are_open(tmp_path: Path, has_rights: bool) -> None:
    command: tuple[str, ...] = (*COMMAND, "serve")
    if not has_rights:
        if reason := await asyncio.to_thread(why_not):
            pytest.skip(reason)
        command = without_rights(command)
    async with serving(tmp_path, "--json", *flags(*SETTINGS), command=command) as process:
        ready = process.ready
        named = {int(ready[name].removesuffix("/metrics").rpartition(":")[2]) for name in ADDRESSES}
        assert len(named) == len(ADDRESSES)
        async with grpc.aio.insecure_channel(ready["address"]) as channel:
            assert (await ask(CompletionServiceStub(channel), request())).code is grpc.StatusCode.OK
        assert await asyncio.to_thread(listening_ports, process.process.pid) == named
        if not has_rights:
            assert psutil.Process(process.process.pid).uids().effective == int(NOBODY)
