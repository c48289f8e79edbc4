"""An extension of vLLM's worker that counts, in a file whose path is in `COUNTS_ENV`, what a step without drafts does.

It also fills the memory for sampling parameters with NaN, so that reading what was never written has one result.
"""

import mmap
import os
from collections.abc import Callable
from typing import Any

COUNTS_ENV = "TESTS_WORKER_COUNTS"
COUNTED = ("rejection samplings", "passes of the draft model", "fetches of drafts")


def open_counts(path: str) -> memoryview:
    """Map the file; one word for each of `COUNTED`."""
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8 * len(COUNTED))).cast("Q")


def count_calls(owner: Any, name: str, counts: memoryview, at: int) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        counts[at] += 1
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def fill_parameters(rejection_sampler: Any) -> None:
    import torch

    expand_batch_to_tokens = rejection_sampler.expand_batch_to_tokens

    def expand_in_filled_memory(*args: Any, **kwargs: Any) -> Any:
        torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory
        try:
            return expand_batch_to_tokens(*args, **kwargs)
        finally:
            torch.use_deterministic_algorithms(False)

    rejection_sampler.expand_batch_to_tokens = expand_in_filled_memory


if COUNTS_ENV in os.environ:
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode.draft_model import DraftModelProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from completion_server.engine.vllm.drafts.worker import WorkerExtension as WorkerExtension  # as in the server

    _counts = open_counts(os.environ[COUNTS_ENV])
    count_calls(rejection_sampler.RejectionSampler, "forward", _counts, 0)
    count_calls(DraftModelProposer, "propose", _counts, 1)
    count_calls(GPUModelRunner, "take_draft_token_ids", _counts, 2)
    fill_parameters(rejection_sampler)
