"""Samples a step that verifies no draft as without speculation; vLLM uses the rejection sampler for it."""

from collections.abc import Callable
from typing import Any

from completion_server.engine.vllm.patches.patch import Patch


def _replacement(sample: Callable[..., Any]) -> Callable[..., Any]:
    def sample_unspeculated(self: Any, logits: Any, metadata: Any, *args: Any, **kwargs: Any) -> Any:
        has_drafts = metadata is not None and metadata.max_spec_len > 0
        return sample(self, logits, metadata if has_drafts else None, *args, **kwargs)

    return sample_unspeculated


PATCH = Patch(
    name="plain-sampler",
    fault="a step at K = 0 is slower than one of an engine without a draft model",
    replaces="vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",
    digests={"0.32": "5cb5c1da02cfdc68", "0.33": "5cb5c1da02cfdc68"},
    replacement=_replacement,
)
