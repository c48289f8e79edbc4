"""The engine contract, on the real vLLM engine with speculative decoding on."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from completion_server.core.errors import ConfigError
from completion_server.engine.settings import CPU_BLOCK_SIZE, EngineSettings
from tests.engine.contract import EngineContract
from tests.engine.speculation_contract import SpeculationContract
from tests.support.vllm import make_vllm_engine

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = pytest.mark.serial


@pytest.fixture
def engine(vllm_engine: "VllmEngine") -> "VllmEngine":
    return vllm_engine


@pytest_asyncio.fixture
async def doomed_engine() -> "AsyncIterator[VllmEngine]":
    engine = make_vllm_engine()
    await engine.start()
    yield engine
    await engine.stop()


class TestVllmEngine(EngineContract, SpeculationContract):
    vocab_size = 4096


def test_an_unknown_option_is_refused_with_the_nearest_one(vllm_engine: "VllmEngine") -> None:
    from completion_server.engine.vllm.arguments import engine_args

    assert engine_args(EngineSettings(model="m", vllm={"block_size": 64}))["block_size"] == 64
    with pytest.raises(ConfigError, match=r"engine\.vllm\.block_sise: .*did you mean 'block_size'\?"):
        engine_args(EngineSettings(model="m", vllm={"block_sise": 64}))


def test_the_cache_blocks_on_a_cpu_are_the_servers_own_choice(vllm_engine: "VllmEngine") -> None:
    from completion_server.engine.vllm.arguments import engine_args

    assert engine_args(EngineSettings(model="m"))["block_size"] == CPU_BLOCK_SIZE


def test_models_are_compiled_unless_switched_off(vllm_engine: "VllmEngine") -> None:
    from completion_server.engine.vllm.arguments import engine_args

    assert engine_args(EngineSettings(model="m"))["enforce_eager"] is False
    assert engine_args(EngineSettings(model="m", enforce_eager=True))["enforce_eager"] is True


def test_a_machine_that_cannot_compile_runs_uncompiled_unless_told_to_compile(
    vllm_engine: "VllmEngine", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from completion_server.engine.vllm.arguments import engine_args

    monkeypatch.setenv("CXX", "no-such-compiler")
    assert engine_args(EngineSettings(model="m"))["enforce_eager"] is True
    assert "the model runs uncompiled, which is slower; there is no C++ compiler 'no-such-compiler'" in caplog.text
    with pytest.raises(ConfigError, match=r"engine.enforce_eager: must be true or unset .*, got false; there is no "):
        engine_args(EngineSettings(model="m", enforce_eager=False))
