"""Signals to a server process, with a scripted engine whose requests last, and with a real one that loads."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.models import ROOT, TARGET
from tests.support.server import ENDLESS, FREE_PORTS, UNCOMPILED, eventually, request
from tests.support.server_process import COMMAND, ServingProcess, flags, serving

SETTINGS = (
    "engine.kind=scripted",
    f"engine.model={TARGET}",
    f"engine.max_model_len={2 * ENDLESS}",
    f"limits.max_tokens={ENDLESS}",
    "server.listen=127.0.0.1:0",
    "server.admin_listen=",
    "server.metrics_listen=",
    "server.grace_s=30",
    "engine.hang_timeout_s=0.5",
)


@dataclass
class Busy:
    """A server process, and a call that it has taken and will not end for long."""

    server: ServingProcess
    channel: grpc.aio.Channel
    call: Any


@pytest_asyncio.fixture(scope="module")
async def busy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Busy]:
    async with (
        serving(tmp_path_factory.mktemp("server"), "--json", *flags(*SETTINGS)) as server,
        grpc.aio.insecure_channel(server.ready["address"]) as channel,
    ):
        # A block that the script never leaves.
        call = CompletionServiceStub(channel).Complete(request("x = (\n    ", mode=2, max_tokens=100_000))
        await anext(aiter(call))
        yield Busy(server, channel, call)


async def test_a_server_that_was_stopped_and_continued_keeps_its_engine(busy: Busy) -> None:
    """As at a laptop's lid or a migration: the time in which it read no outputs is not the engine's silence."""
    events = aiter(busy.call)
    for _ in range(3):
        busy.server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.0)
        busy.server.process.send_signal(signal.SIGCONT)
        for _ in range(50):
            await asyncio.wait_for(anext(events), 30)


async def test_the_first_sigterm_says_not_serving_before_anything_ends_and_the_second_ends_it_at_once(
    busy: Busy,
) -> None:
    watch = health_pb2_grpc.HealthStub(busy.channel).Watch(health_pb2.HealthCheckRequest())
    assert (await asyncio.wait_for(watch.read(), 30)).status == health_pb2.HealthCheckResponse.SERVING
    busy.server.process.send_signal(signal.SIGTERM)
    assert (await asyncio.wait_for(watch.read(), 30)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    refused = CompletionServiceStub(busy.channel).Complete(request(session_id="late"))
    assert await asyncio.wait_for(refused.code(), 30) is grpc.StatusCode.UNAVAILABLE
    assert not busy.call.done()
    assert busy.server.process.returncode is None
    busy.server.process.send_signal(signal.SIGTERM)
    assert await busy.server.ended() == 1


SERVE = """
import asyncio, time
from completion_server.requests.loop_lag import LoopLagMonitor
from completion_server.requests.limits.settings import ServerSettings
from completion_server.cli import main

async def run(self):
    try:
        await asyncio.sleep(1e6)
    finally:
        time.sleep(1e6)

LoopLagMonitor.run = run
ServerSettings.stop_timeout_s = 0.5
main()
"""


async def test_a_part_that_never_ends_is_named_and_left(tmp_path: Path) -> None:
    command = sys.executable, "-c", SERVE, "serve"
    async with serving(tmp_path, *flags(*SETTINGS), command=command) as server:
        server.process.send_signal(signal.SIGTERM)
        assert await server.ended() == 1
    log = server.log.read_text().splitlines()
    assert not any('"stopped"' in line for line in log)
    said = 'the stop took too long: "ending the server\'s tasks" did not end; open: '
    assert any(line.startswith(f"completion-server: {said}") and "loop lag" in line for line in log)
    assert any(json.loads(line)["event"].startswith(said) for line in log if line.startswith("{"))


START_TIMEOUT_S = 300.0
"""For machines that are busy with other things: until the engine's process is there, and until it has imported vLLM."""


def loading_engine(server: asyncio.subprocess.Process) -> list[psutil.Process]:
    """Return the processes of the engine that a server is starting, none before there are any."""
    children = psutil.Process(server.pid).children(recursive=True)
    return children if any("spawn_main" in " ".join(child.cmdline()) for child in children) else []


@pytest.mark.full
@pytest.mark.serial
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_that_still_loads_ends_with_its_server(sent: signal.Signals) -> None:
    server = await asyncio.create_subprocess_exec(
        *COMMAND,
        "serve",
        *flags(*FREE_PORTS, UNCOMPILED, f"engine.model={TARGET}"),
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
    )
    engine: list[psutil.Process] = []
    try:
        await eventually(lambda: bool(loading_engine(server)), START_TIMEOUT_S)
        engine = loading_engine(server)
        server.send_signal(sent)
        assert await asyncio.wait_for(server.wait(), 20) == (0 if sent is signal.SIGTERM else -sent)
        _gone, alive = await asyncio.to_thread(psutil.wait_procs, engine, timeout=START_TIMEOUT_S)
        assert not alive
    finally:
        for process in engine:
            if process.is_running():
                process.kill()
        if server.returncode is None:
            server.kill()
            await asyncio.wait_for(server.wait(), 20)
