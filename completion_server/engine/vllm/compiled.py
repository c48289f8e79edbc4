"""Whether this machine can compile a model for a CPU."""

import os
import shutil
import sysconfig
from pathlib import Path

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
