"""A server whose processes are suspended between its turns."""

import asyncio

import psutil
import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess
from tests.support.models import ROOT

HANG_TIMEOUT_S = 2.0
SETTINGS = (*SERVES_ALL, f"engine.hang_timeout_s={HANG_TIMEOUT_S}", "engine.num_speculative_tokens=0")
NUM_CALLERS, NUM_REQUESTS = 4, 16


def processes_of(server: ServerProcess) -> set[int]:
    return {each.pid for each in psutil.Process(server.pid).children(recursive=True)}


async def ask(address: str, caller: int) -> list[str]:
    async with CompletionClient(address, user=f"user-{caller}") as client:
        requests = [
            pb.CompleteRequest(prefix=f"def add_{caller}_{number}(a, b):\n    return ", max_tokens=48)
            for number in range(NUM_REQUESTS)
        ]
        return [(await client.complete(each, timeout_s=60)).finish_reason or "" for each in requests]


@pytest.mark.serial
@pytest.mark.full
async def test_a_server_that_rests_keeps_its_engine_and_its_requests() -> None:
    async with ServerProcess(ROOT / "deploy" / "local" / "server.toml", SETTINGS) as server:
        processes = processes_of(server)
        asked = asyncio.gather(*(ask(server.ready["address"], caller) for caller in range(NUM_CALLERS)))
        for _ in range(3):
            await asyncio.sleep(0.1)
            server.process.pause()
            await asyncio.sleep(2 * HANG_TIMEOUT_S)
            server.process.resume()
        assert {reason for each in await asked for reason in each} <= {"stop", "length"}
        assert processes_of(server) == processes
