"""Says at each start whether it compiled the models, or loaded code that an earlier one had left in vLLM's cache."""

from pathlib import Path

from vllm import envs

_COMPILED = "torch_compile_cache/torch_aot_compile/*/*/model"


class CompiledCode:
    """The compiled models in vLLM's cache, and what a start adds to them."""

    def __init__(self) -> None:
        """Look at the cache, before a start."""
        self._folder = Path(envs.VLLM_CACHE_ROOT)
        self._before = self._found()

    def describe(self) -> str:
        """Return what a start that has ended did; "" if the cache has no compiled models."""
        found = self._found()
        added = sum(self._before.get(path) != written for path, written in found.items())
        if added:
            return f"compiled {added} models; the code is in {self._folder}, and later starts load it if that is kept"
        return f"compiled code of an earlier start was loaded from {self._folder}" if found else ""

    def _found(self) -> dict[Path, int]:
        """Return when each compiled model was written."""
        return {path: path.stat().st_mtime_ns for path in self._folder.glob(_COMPILED)}
