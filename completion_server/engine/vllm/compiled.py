"""Compiled models on a CPU: whether this machine can compile one, and a patch of torch's loader for later starts.

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
from vllm import envs


def cannot_compile_reason() -> str:
    """Return why this machine can't compile a model for a CPU, and what to do about it; "" if it can.

    torch writes C++ that includes Python.h, and vLLM keeps all of it in its cache folder.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler {compiler!r}: install g++, or name another one with CXX"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        return f"Python's headers are not installed ({header}): install python3-dev"
    folder = Path(envs.VLLM_CACHE_ROOT)
    if not os.access(next(each for each in (folder, *folder.parents) if each.exists()), os.W_OK):
        return f"vLLM's cache folder {folder} can't be written: name another one with VLLM_CACHE_ROOT"
    return ""


@cache
def patch_loader() -> None:
    """Patch torch's loader once in a process: a compiled function gets the method that vLLM calls after the loading."""
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
