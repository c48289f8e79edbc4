"""The arguments and attributes of vLLM that the GPU scripts use exist. Without a GPU there is no other test of them."""

from pathlib import Path

import pytest

from completion_server.config import load_config
from loadtest.bench.gpu.sessions import SessionsPlan
from loadtest.bench.gpu.speculation import SpeculationPlan
from loadtest.bench.gpu.ttft import TtftPlan

pytestmark = pytest.mark.serial


@pytest.mark.timeout(600)
def test_vllm_has_the_arguments() -> None:
    from vllm.config.speculative import SpeculativeConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    known, drafting = AsyncEngineArgs.__dataclass_fields__.keys(), SpeculativeConfig.__dataclass_fields__.keys()
    given = [way.args for plan in (SpeculationPlan(), TtftPlan()) for way in plan.ways(Path("models"))]
    served = load_config(None, SessionsPlan().overrides(Path("models")), {})
    assert served.engine.max_num_speculative_tokens == 5
    given.append(served.engine.vllm)
    for args in given:
        assert args.keys() <= known
        assert args.get("speculative_config", {}).keys() <= drafting


def test_vllm_has_the_arguments_for_a_gpus_steps() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    from completion_server.engine.settings import EngineSettings
    from completion_server.engine.vllm.gpu_batches import gpu_batch_args

    assert gpu_batch_args(EngineSettings(model="m")).keys() <= AsyncEngineArgs.__dataclass_fields__.keys()


def test_vllm_tells_the_size_of_its_kv_cache() -> None:
    from vllm.config import CacheConfig

    # What `draft_model.gpu` reads of the engine's configuration.
    assert CacheConfig.__dataclass_fields__.keys() >= {"num_gpu_blocks", "block_size"}
