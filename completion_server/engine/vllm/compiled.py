"""Compiled models on a CPU: whether this machine can compile one, and a patch that lets a later start load the result.

vLLM compiles a model for each of its configurations and keeps the code in its cache (VLLM_CACHE_ROOT). On a CPU vLLM
0.32 then fails to load it: the function that torch loads lacks the method `finalize_loading`, so vLLM compiles again at
each start, with a warning.
"""

import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import torch


def cannot_compile_reason() -> str:
    """Return why this machine can't compile a model for a CPU, to C++ that includes Python.h; "" if it can."""
    compiler = os.environ.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler ({compiler}; CXX names another one)"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        return f"Python's headers are not installed: {header}"
    return ""


@cache
def patch_loader() -> None:
    """Patch torch's loader of compiled functions, once in a process: what it loads gets the method that vLLM calls."""
    load_compiled_function: Any = torch.compiler.load_compiled_function

    def load(*args: Any, **kwargs: Any) -> Any:
        loaded = load_compiled_function(*args, **kwargs)
        compiled = loaded._artifacts.compiled_fn  # where vLLM looks for the method
        if not hasattr(compiled, "finalize_loading"):
            compiled.finalize_loading = _finalize_loading
        return loaded

    setattr(torch.compiler, "load_compiled_function", load)  # noqa: B010


def _finalize_loading(_config: object) -> None:
    """Do nothing: the function that torch loads is complete."""
