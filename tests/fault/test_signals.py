"""Signals to a server process; the engine is scripted, so that requests last as long as the test needs."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from tests.support.models import ROOT, TARGET
from tests.support.server import ENDLESS, request

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
    "engine.heartbeat_s=0",
)


@dataclass
class Busy:
    """A server process, and a call that it has taken and will not end for long."""

    process: asyncio.subprocess.Process
    channel: grpc.aio.Channel
    call: Any


@pytest_asyncio.fixture
async def busy() -> AsyncIterator[Busy]:
    flags = [flag for setting in SETTINGS for flag in ("--set", setting)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "completion_server", "serve", "--json", *flags, stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        async with grpc.aio.insecure_channel(ready["address"]) as channel:
            # A block that the script never leaves.
            call = CompletionServiceStub(channel).Complete(request("x = (\n    ", mode=2, max_tokens=4_000))
            await anext(aiter(call))
            yield Busy(process, channel, call)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_first_sigterm_says_not_serving_before_anything_ends(busy: Busy) -> None:
    watch = health_pb2_grpc.HealthStub(busy.channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    busy.process.send_signal(signal.SIGTERM)
    assert (await asyncio.wait_for(watch.read(), 5)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    refused = CompletionServiceStub(busy.channel).Complete(request(session_id="late"))
    assert await asyncio.wait_for(refused.code(), 5) is grpc.StatusCode.UNAVAILABLE
    assert not busy.call.done()
    assert busy.process.returncode is None
    busy.call.cancel()
    assert await asyncio.wait_for(busy.process.wait(), 20) == 0


async def test_a_second_sigterm_ends_it_at_once(busy: Busy) -> None:
    watch = health_pb2_grpc.HealthStub(busy.channel).Watch(health_pb2.HealthCheckRequest())
    await watch.read()
    busy.process.send_signal(signal.SIGTERM)
    await watch.read()
    busy.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(busy.process.wait(), 5) == 1


async def test_a_server_that_was_stopped_and_continued_keeps_its_engine(busy: Busy) -> None:
    """As at a laptop's lid or a migration: the time in which it read no outputs is not the engine's silence."""
    events = aiter(busy.call)
    for _ in range(3):
        busy.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(1.0)
        busy.process.send_signal(signal.SIGCONT)
        for _ in range(50):
            await asyncio.wait_for(anext(events), 5)
