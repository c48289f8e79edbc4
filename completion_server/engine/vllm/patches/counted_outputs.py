"""Shows each step's outputs to the server, before vLLM drops those of aborted generations and merges the rest."""

from collections.abc import Callable, Sequence
from typing import Any

from completion_server.engine.vllm.patches.patch import Patch


def _replacement(
    process_outputs: Callable[..., Any], count: Callable[[Sequence[Any], float], None]
) -> Callable[..., Any]:
    def count_and_process(outputs: Sequence[Any], at: float, *args: Any, **kwargs: Any) -> Any:
        count(outputs, at)
        return process_outputs(outputs, at, *args, **kwargs)

    return count_and_process


PATCH = Patch(
    name="counted-outputs",
    fault="no token and no step is counted, so the number of slots and K are chosen blindly",
    replaces="vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
    digests={"0.32": "9e116796002e75f2", "0.33": "06811284749d457d"},
    replacement=_replacement,
    is_required=True,
)
