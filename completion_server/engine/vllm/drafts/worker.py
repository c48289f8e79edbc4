"""An extension of vLLM's worker: loading it patches the process that owns the model runner, so that K = 0 is cheap."""

from completion_server.engine.vllm.patches.drafts import plain_sampler, recalled_drafts, skipped_drafts

plain_sampler.apply()
recalled_drafts.apply()
skipped_drafts.apply()  # around it: a step at K = 0 looks nothing up


class WorkerExtension:
    """Adds nothing to vLLM's worker."""
