"""Every change to vLLM, each in a module of its own, by the processes that apply them. See docs/engine.md.

Imports nothing of vLLM: processes of the engine import this before vLLM.
"""

import logging

from completion_server.engine.vllm.patches import (
    compiled_loading,
    counted_outputs,
    gloo_device,
    idle_polling,
    plain_sampler,
    prompt_seeds,
    sampled_spans,
    sampling_parameters,
    skipped_drafts,
    span_exporter,
    unfetched_drafts,
)

logger = logging.getLogger(__name__)

IN_EACH_PROCESS = (idle_polling.PATCH, gloo_device.PATCH)
"""Applied by the plugin `completion_server` in each process of an engine."""

ON_A_CPU = (sampling_parameters.PATCH, prompt_seeds.PATCH, compiled_loading.PATCH)
"""Applied by the plugin `completion_server_on_cpu`: the first one in each process, the others in the worker."""

WITH_DRAFTS = (plain_sampler.PATCH, skipped_drafts.PATCH, unfetched_drafts.PATCH)
"""Applied to an engine whose K is live: the last one by the scheduler, the others by the worker's extension."""

WITH_SPANS = (span_exporter.PATCH, sampled_spans.PATCH)
"""Applied in the server's process, to an engine that makes spans."""

IN_THE_SERVER = (counted_outputs.PATCH,)
"""Applied in the server's process."""

ALL = (*IN_EACH_PROCESS, *ON_A_CPU, *WITH_DRAFTS, *WITH_SPANS, *IN_THE_SERVER)


def log_patches(*, is_cpu: bool, is_k_live: bool, has_spans: bool) -> None:
    """Log the patches that an engine starts with, and those that don't fit.

    Raises:
        ConfigError: one does not fit, and an engine without it would be wrong.

    """
    chosen = (
        *IN_EACH_PROCESS,
        *IN_THE_SERVER,
        *(ON_A_CPU if is_cpu else ()),
        *(WITH_DRAFTS if is_k_live else ()),
        *(WITH_SPANS if has_spans else ()),
    )
    reasons = {patch: patch.left_out_reason() for patch in chosen}
    logger.info("vLLM runs with the patches %s", ", ".join(patch.name for patch in chosen if not reasons[patch]))
    for patch, reason in reasons.items():
        if reason:
            logger.warning("vLLM runs without the patch %s: %s. Without it %s", patch.name, reason, patch.fault)
