"""Signals to a server while its real engine loads: no process may be left."""

import asyncio
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.models import ROOT, TARGET
from tests.support.server import FREE_PORTS, UNCOMPILED

pytestmark = [pytest.mark.full, pytest.mark.serial]

START_TIMEOUT_S = 300.0
"""For machines that are busy with other things: until the engine's process is there, and until it has imported vLLM."""


def loading_engine(server: asyncio.subprocess.Process) -> list[psutil.Process]:
    """Return the processes of the engine that a server is starting, none before there are any."""
    children = psutil.Process(server.pid).children(recursive=True)
    return children if any("spawn_main" in " ".join(child.cmdline()) for child in children) else []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_that_still_loads_ends_with_its_server(sent: signal.Signals) -> None:
    flags = [flag for setting in (*FREE_PORTS, UNCOMPILED, f"engine.model={TARGET}") for flag in ("--set", setting)]
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "completion_server", "serve", *flags, stdout=subprocess.DEVNULL, cwd=ROOT
    )
    engine: list[psutil.Process] = []
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not (engine := loading_engine(server)):
                await asyncio.sleep(0.01)
        server.send_signal(sent)
        assert await asyncio.wait_for(server.wait(), 5) == (0 if sent is signal.SIGTERM else -sent)
        _gone, alive = await asyncio.to_thread(psutil.wait_procs, engine, timeout=START_TIMEOUT_S)
        assert not alive
    finally:
        for process in engine:
            if process.is_running():
                process.kill()
        if server.returncode is None:
            server.kill()
            await server.wait()
