"""The real vLLM engine with speculative decoding on: the engine contract and its processes."""

import asyncio
import ipaddress
from typing import TYPE_CHECKING

import psutil
import pytest

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.processes import child_ids, with_descendants
from tests.engine.contract import EngineContract, run_request
from tests.engine.speculation_contract import SpeculationContract
from tests.support.cancels import cancel_and_wait
from tests.support.server import eventually
from tests.support.vllm import make_vllm_engine

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = pytest.mark.serial


@pytest.fixture
def engine(vllm_engine: "VllmEngine") -> "VllmEngine":
    return vllm_engine


@pytest.fixture
def doomed_engine(doomed_vllm_engine: "VllmEngine") -> "VllmEngine":
    return doomed_vllm_engine


class TestVllmEngine(EngineContract, SpeculationContract):
    vocab_size = 4096


async def test_an_engine_listens_on_loopback_alone(vllm_engine: "VllmEngine") -> None:
    processes = [psutil.Process(process_id) for process_id in vllm_engine.process_ids]
    assert len(processes) == 2, "the core and its worker"
    sockets = [one for process in processes for one in process.net_connections()]
    addresses = [one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN]
    assert len(addresses) <= 1, "groups of one member share a port"
    assert all(ipaddress.ip_address(address).is_loopback for address in addresses)


async def test_vllms_own_metrics_count(vllm_engine: "VllmEngine") -> None:
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    assert vllm_engine._llm is not None
    manager = vllm_engine._llm.logger_manager
    assert manager is not None
    # Its own, not the registry's: vLLM takes those of the engine before out of that when a test makes another engine.
    (own,) = (each for each in manager.stat_loggers if isinstance(each, PrometheusStatLogger))
    before = own.counter_generation_tokens[0]._value.get()
    await run_request(vllm_engine, GenerationRequest("counted", [1, 2, 3], 4))
    await eventually(lambda: own.counter_generation_tokens[0]._value.get() == before + 4)


def test_vllms_own_metrics_can_be_left_out() -> None:
    from vllm.v1.metrics.loggers import StatLoggerManager

    from completion_server.engine.vllm.conversion import NoMetrics

    made = StatLoggerManager(None, custom_stat_loggers=[NoMetrics], enable_default_loggers=False)  # type: ignore[arg-type]
    made.record(None, None)
    assert [type(each) for each in made.stat_loggers] == [NoMetrics]


@pytest.mark.full
async def test_an_engine_is_idle_after_a_step(vllm_engine: "VllmEngine") -> None:
    await run_request(vllm_engine, GenerationRequest("before", [1, 2, 3], 1))
    await asyncio.sleep(1.5)
    before = vllm_engine.cpu_seconds()
    for number in range(3):
        await run_request(vllm_engine, GenerationRequest(f"step {number}", [1, 2, 3], 1))
        await asyncio.sleep(1.0)
    # A worker that spins for a second after each step uses 3 s.
    after = vllm_engine.cpu_seconds()
    assert before
    assert after
    assert 0 < after - before < 1.5


@pytest.mark.full
async def test_a_load_that_is_given_up_leaves_no_process() -> None:
    others = child_ids()
    engine = make_vllm_engine()
    starting = asyncio.create_task(engine.start())
    await eventually(lambda: bool(child_ids() - others), 300.0)
    processes = with_descendants(child_ids() - others)
    await cancel_and_wait(starting)
    await engine.stop()
    assert child_ids() == others
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)
