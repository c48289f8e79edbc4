"""A server with HTTP and a scripted engine behind it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.http_clients import HTTP
from tests.support.http_script import Script
from tests.support.server import RunningServer, endless_config, endless_engine, run_server


@pytest.fixture
def script() -> Script:
    return Script()


@pytest_asyncio.fixture
async def engine(script: Script) -> ScriptedEngine:
    return endless_engine(script, ServiceTimes(decode_base_s=0.01))


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[RunningServer]:
    async with run_server(endless_config("engine.heartbeat_s=0", HTTP), lambda: engine) as running:
        yield running
