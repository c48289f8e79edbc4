"""Lets vLLM load a model on a CPU that an earlier start compiled.

vLLM compiles a model for each of its configurations and keeps the code in its cache (VLLM_CACHE_ROOT). On a CPU it then
fails to load it, because the function that torch loads lacks the method `finalize_loading`.
"""

from collections.abc import Callable
from typing import Any

from completion_server.engine.vllm.patches.patch import Patch


def _replacement(load_compiled_function: Callable[..., Any]) -> Callable[..., Any]:
    def load(*args: Any, **kwargs: Any) -> Any:
        loaded = load_compiled_function(*args, **kwargs)
        compiled = loaded._artifacts.compiled_fn  # where vLLM looks for the method
        if not hasattr(compiled, "finalize_loading"):
            compiled.finalize_loading = _finalize_loading
        return loaded

    return load


def _finalize_loading(_config: object) -> None:
    """Do nothing: the function that torch loads is complete."""


PATCH = Patch(
    name="compiled-loading",
    fault="vLLM compiles the models again at each start",
    replaces="torch.compiler:load_compiled_function",
    digests={"0.32": "307dd9d3767a9225"},
    replacement=_replacement,
)
