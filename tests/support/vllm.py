"""vLLM engines on the embedded models."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest

from completion_server.app.engine_factory import make_engine_factory
from completion_server.config import Config
from tests.support.models import DRAFT
from tests.support.server import make_config

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine


def vllm_config(*overrides: str) -> Config:
    """Return a configuration of a vLLM engine with a draft model."""
    sizes = ("engine.num_speculative_tokens=3", "engine.max_num_seqs=16", "scheduling.max_slots=16")
    return make_config(f"engine.draft_model={DRAFT}", *sizes, *overrides)


def make_vllm_engine(*overrides: str) -> "VllmEngine":
    """Return a vLLM engine with a draft model, not yet started."""
    return cast("VllmEngine", make_engine_factory(vllm_config(*overrides))())


@contextmanager
def asynchronous_scheduling() -> Iterator[None]:
    """Start engines with asynchronous scheduling, as on a GPU: a step is planned while the one before it runs.

    vLLM switches asynchronous scheduling off on a CPU, because it gains nothing there; it works all the same.
    """
    from completion_server.engine.vllm import engine as module

    make_config = module.AsyncEngineArgs.create_engine_config
    configs: list[Any] = []

    def make_async_config(*args: Any, **kwargs: Any) -> Any:
        config = make_config(*args, **kwargs)
        config.scheduler_config.async_scheduling = True
        configs.append(config)
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.AsyncEngineArgs, "create_engine_config", make_async_config)
        yield
    assert configs[-1].scheduler_config.scheduler_cls.endswith(".LookupAsyncScheduler")
