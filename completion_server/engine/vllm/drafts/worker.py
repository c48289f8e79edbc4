"""An extension of vLLM's worker: loading it patches the process that owns the model runner, so that K = 0 is cheap."""

from completion_server.engine.vllm.patches.drafts import plain_sampler, skipped_drafts

plain_sampler.apply()
skipped_drafts.apply()


class WorkerExtension:
    """Adds nothing to vLLM's worker."""
