"""A server whose processes are suspended between its turns."""

import asyncio

import psutil
import pytest

from loadtest.bench.runner.loops import BenchPrompt
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess
from tests.support.models import ROOT

HANG_TIMEOUT_S = 2.0
SETTINGS = (*SERVES_ALL, f"engine.hang_timeout_s={HANG_TIMEOUT_S}", "engine.num_speculative_tokens=0")


def processes_of(server: ServerProcess) -> set[int]:
    return {each.pid for each in psutil.Process(server.pid).children(recursive=True)}


@pytest.mark.serial
@pytest.mark.full
async def test_a_server_that_rests_keeps_its_engine_and_its_requests() -> None:
    prompts = [BenchPrompt(f"def add_{number}(a, b):\n    return ", "\n", 48) for number in range(64)]
    config = ROOT / "deploy" / "local" / "server.toml"
    async with ServerProcess(config, SETTINGS) as server:
        processes = processes_of(server)
        asked = asyncio.create_task(server.run(prompts, 4))
        for _ in range(3):
            await asyncio.sleep(0.1)
            server.process.pause()
            await asyncio.sleep(2 * HANG_TIMEOUT_S)
            server.process.resume()
        assert len((await asked).samples) == len(prompts)  # it raises for a request without an answer
        assert processes_of(server) == processes
