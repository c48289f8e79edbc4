"""Patches for an engine whose number of speculative tokens (K) is live: K = 0 costs what no speculation costs."""

from collections.abc import Callable
from typing import Any

from completion_server.engine.vllm.patches.patch import patching

RUNS_DRAFT = "completion_server_runs_draft"
"""Attribute that the scheduler adds to vLLM's plan of a step: False if the draft model is switched off."""


@patching(
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",
    fault="a step at K = 0 is slower than one of an engine without a draft model",
    digests={"0.32": "5cb5c1da02cfdc68", "0.33": "5cb5c1da02cfdc68"},
)
def plain_sampler(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Sample a step that verifies no draft as without speculation; vLLM uses the rejection sampler for it."""

    def sample_unspeculated(self: Any, logits: Any, metadata: Any, *args: Any, **kwargs: Any) -> Any:
        has_drafts = metadata is not None and metadata.max_spec_len > 0
        return sample(self, logits, metadata if has_drafts else None, *args, **kwargs)

    return sample_unspeculated


@patching(
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids",
    fault="the draft model runs in each step at K = 0",
    digests={"0.32": "a60269aca9de4e25", "0.33": "9db461529ab7e17c"},
)
def skipped_drafts(propose: Callable[..., Any]) -> Callable[..., Any]:
    """Skip the draft model in a step that needs no draft.

    vLLM runs the draft model once in each step, also if it wants no drafts, to keep the draft's KV cache complete. With
    the patch a decode step that wants no drafts does not run it. While drafts are switched off, it does not run for
    prompts either.

    A sequence that was decoded at K = 0 has no draft KV for those tokens: after a change to K > 0 its drafts are worse
    until it ends, never its text, because the target verifies each token.
    """
    import torch

    def propose_if_wanted(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Return drafts [num_reqs, K]; without a pass of the draft model if nothing needs one."""
        has_cache = self.speculative_config.method != "ngram"
        is_wanted = scheduler_output.num_spec_tokens_to_schedule > 0
        if is_wanted or (has_cache and not needs_no_draft(scheduler_output, is_async=self.use_async_scheduling)):
            return propose(self, scheduler_output, *args, **kwargs)
        if not self.speculative_config.uses_draft_model():  # vLLM takes other drafts as lists
            return [[] for _ in range(self.input_batch.num_reqs)]
        self._draft_probs = self._draft_prob_req_ids = None
        return torch.empty(self.input_batch.num_reqs, 0, dtype=torch.int64, device=self.device)

    return propose_if_wanted


def needs_no_draft(scheduler_output: Any, *, is_async: bool) -> bool:
    """Return whether a step needs no pass of the draft model: it wants no drafts, verifies none, computes no prompt.

    While drafts are switched off the prompt does not matter, nor what is verified. Only with asynchronous scheduling
    vLLM counts the verified tokens beside that pass.
    """
    is_on = getattr(scheduler_output, RUNS_DRAFT, True)
    if scheduler_output.num_spec_tokens_to_schedule:
        return False
    if scheduler_output.scheduled_spec_decode_tokens and (is_on or is_async):
        return False
    has_prompts = scheduler_output.total_num_scheduled_tokens > len(scheduler_output.num_scheduled_tokens)
    return not (has_prompts and is_on)


@patching(
    "vllm.v1.engine.core:EngineCore.post_step",
    fault="the engine core asks its worker for drafts after each step at K = 0",
    digests={"0.32": "dfda901ee36bf711", "0.33": "dfda901ee36bf711"},
)
def unfetched_drafts(post_step: Callable[..., None]) -> Callable[..., None]:
    """Let the engine core ask the worker for drafts only if there are some: one of three exchanges in each step."""

    def fetch_drafts_if_proposed(self: Any, *args: Any, **kwargs: Any) -> None:
        if getattr(self.scheduler, "proposes_drafts", True):
            post_step(self, *args, **kwargs)

    return fetch_drafts_if_proposed
