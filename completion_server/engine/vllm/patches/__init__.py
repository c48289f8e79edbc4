"""Every change to vLLM, by the processes that apply them. See docs/engine.md.

Imports nothing of vLLM: processes of the engine import this before vLLM.
"""

import logging

from completion_server.engine.vllm.patches.cpu import compiled_loading, masked_rows, prompt_seeds, sampling_parameters
from completion_server.engine.vllm.patches.drafts import plain_sampler, skipped_drafts, unfetched_drafts
from completion_server.engine.vllm.patches.processes import (
    counted_outputs,
    gloo_device,
    idle_polling,
    sampled_spans,
    span_exporter,
)

logger = logging.getLogger(__name__)

IN_EACH_PROCESS = (idle_polling, gloo_device)
"""Applied by the plugin `completion_server` in each process of an engine."""

ON_A_CPU = (sampling_parameters, prompt_seeds, compiled_loading, masked_rows)
"""Applied by the plugin `completion_server_on_cpu`: the first one in each process, the others in the worker."""

WITH_DRAFTS = (plain_sampler, skipped_drafts, unfetched_drafts)
"""Applied to an engine whose K is live: the last one by the scheduler, the others by the worker's extension."""

WITH_SPANS = (span_exporter, sampled_spans)
"""Applied in the server's process, to an engine that makes spans."""

IN_THE_SERVER = (counted_outputs,)
"""Applied in the server's process."""

ALL = (*IN_EACH_PROCESS, *ON_A_CPU, *WITH_DRAFTS, *WITH_SPANS, *IN_THE_SERVER)


def log_patches(*, is_cpu: bool, is_k_live: bool, has_spans: bool) -> None:
    """Log the patches that an engine starts with, and those that don't fit.

    Raises:
        ConfigError: one does not fit, and an engine without it would be wrong.

    """
    chosen = [*IN_EACH_PROCESS, *IN_THE_SERVER]
    for patches, is_chosen in ((ON_A_CPU, is_cpu), (WITH_DRAFTS, is_k_live), (WITH_SPANS, has_spans)):
        chosen += patches if is_chosen else ()
    reasons = {patch: patch.left_out_reason() for patch in chosen}
    logger.info("vLLM runs with the patches %s", ", ".join(patch.name for patch in chosen if not reasons[patch]))
    for patch, reason in reasons.items():
        if reason:
            logger.warning("vLLM runs without the patch %s: %s. Without it %s", patch.name, reason, patch.fault)
