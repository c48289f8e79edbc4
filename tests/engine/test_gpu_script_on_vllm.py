"""The arguments and attributes of vLLM that the GPU scripts use exist. Without a GPU there is no other test of them."""

from pathlib import Path

import pytest

from loadtest.bench.speculation.gpu import engine_args

pytestmark = pytest.mark.serial


@pytest.mark.timeout(600)
def test_vllm_has_the_arguments() -> None:
    from vllm.config.speculative import SpeculativeConfig
    from vllm.engine.arg_utils import AsyncEngineArgs

    drafting, plain = (engine_args(Path("target"), draft, 5, 0.82, 64) for draft in (Path("draft"), None))
    assert drafting.keys() <= AsyncEngineArgs.__dataclass_fields__.keys()
    assert drafting["speculative_config"].keys() <= SpeculativeConfig.__dataclass_fields__.keys()
    assert drafting.keys() - plain.keys() == {"speculative_config"}


def test_vllm_reports_the_size_of_its_kv_cache() -> None:
    from vllm.config import CacheConfig

    # What `draft_model.gpu` reads of the engine's configuration.
    assert CacheConfig.__dataclass_fields__.keys() >= {"num_gpu_blocks", "block_size"}
