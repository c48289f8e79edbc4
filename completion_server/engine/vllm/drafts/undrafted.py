"""Makes K = 0 cost what an engine without a draft model costs: three patches of vLLM 0.32.

vLLM runs the draft model once in each step, also if it wants no drafts, to keep the draft's KV cache complete, and it
samples with the rejection sampler although there is nothing to reject. With the patches, a step that verifies no draft
samples as without speculation, and a decode step that wants no drafts does not run the draft model. While drafts are
switched off, it does not run for prompts either. The engine core asks the worker for drafts only if there are some,
which saves one of three exchanges between the two processes in each step.

A sequence that was decoded at K = 0 has no draft KV for those tokens: after a change to K > 0 its drafts are worse
until it ends, never its text, because the target verifies each token.

vLLM loads the module `worker`, which calls `patch_runner`, in the worker's process only, on a CPU and on a GPU. The
scheduler calls `patch_core` in the engine core's process. A version of vLLM with other internals runs unpatched.
"""

import logging
from functools import cache
from typing import Any

from completion_server.engine.vllm.drafts.shared_lookup import RUNS_DRAFT

logger = logging.getLogger(__name__)


@cache
def patch_core() -> None:
    """Patch the engine core, once in a process."""
    try:
        from vllm.v1.engine.core import EngineCore

        core: Any = EngineCore
        post_step = core.post_step
    except (ImportError, AttributeError) as error:
        logger.info("K = 0 asks the worker for drafts with this vLLM: %s", error)
        return

    def fetch_drafts_if_proposed(self: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(self.scheduler, "proposes_drafts", True):
            post_step(self, *args, **kwargs)

    core.post_step = fetch_drafts_if_proposed


@cache
def patch_runner() -> None:
    """Patch the runner, once in a process."""
    import torch

    try:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        runner: Any = GPUModelRunner
        sample, propose = runner._sample, runner.propose_draft_token_ids
    except (ImportError, AttributeError) as error:
        logger.info("K = 0 runs the draft model with this vLLM: %s", error)
        return

    def sample_unspeculated(self: Any, logits: Any, metadata: Any, *args: Any, **kwargs: Any) -> Any:
        """Sample; with the plain sampler if no request of the step has a draft."""
        has_drafts = metadata is not None and metadata.max_spec_len > 0
        return sample(self, logits, metadata if has_drafts else None, *args, **kwargs)

    def propose_if_wanted(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Return drafts [num_reqs, K]; without a pass of the draft model if nothing needs one."""
        if not needs_no_draft(scheduler_output):
            return propose(self, scheduler_output, *args, **kwargs)
        if not self.speculative_config.uses_draft_model():  # vLLM takes other drafts as lists
            return [[] for _ in range(self.input_batch.num_reqs)]
        self._draft_probs = self._draft_prob_req_ids = None
        return torch.empty(self.input_batch.num_reqs, 0, dtype=torch.int64, device=self.device)

    runner._sample, runner.propose_draft_token_ids = sample_unspeculated, propose_if_wanted


def needs_no_draft(scheduler_output: Any) -> bool:
    """Return whether a step needs no pass of the draft model: it verifies no draft, wants none, and computes no prompt.

    The prompt does not matter while drafts are switched off.
    """
    if scheduler_output.num_spec_tokens_to_schedule or scheduler_output.scheduled_spec_decode_tokens:
        return False
    has_prompts = scheduler_output.total_num_scheduled_tokens > len(scheduler_output.num_scheduled_tokens)
    return not (has_prompts and getattr(scheduler_output, RUNS_DRAFT, True))
