"""The engine contract, on the scripted engine."""

from collections.abc import AsyncIterator

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.engine.contract import EngineContract
from tests.engine.speculation_contract import SpeculationContract

QUICK = ServiceTimes(prefill_base_s=1e-3, prefill_per_token_s=1e-6, decode_base_s=1e-3)


@pytest.fixture(params=[0, 3], ids=["plain", "speculative"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(times=QUICK, num_speculative_tokens=request.param)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def doomed_engine(engine: ScriptedEngine) -> ScriptedEngine:
    return engine


class TestScriptedEngine(EngineContract, SpeculationContract):
    quiet_s = 0.05
    num_steps_to_stop = 1
