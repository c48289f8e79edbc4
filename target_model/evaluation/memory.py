"""The memory that an engine takes: of the GPUs by the driver's count, of a CPU's processes by the system's."""

import subprocess

import psutil

from target_model.core.errors import EvaluationError

_COMMAND = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")


def gpu_memory_bytes() -> int:
    """Return the memory in use on all GPUs, whoever uses it; EvaluationError if the driver does not answer.

    The processes' resident memory is the host's, and has nothing of what lies on a GPU.
    """
    try:
        done = subprocess.run(_COMMAND, capture_output=True, text=True, check=True)
        return sum(int(line) for line in done.stdout.split()) << 20
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise EvaluationError(f"nvidia-smi does not tell the GPU's memory: {error}") from error


def process_memory_bytes() -> int:
    """Return the resident memory of this process's children."""
    found = 0
    for child in psutil.Process().children(recursive=True):
        try:
            found += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return found
