"""An extension of vLLM's worker: loading it patches the process that owns the model runner."""

from completion_server.engine.vllm.drafts import undrafted

undrafted.patch_runner()


class WorkerExtension:
    """Adds nothing to vLLM's worker."""
