"""What the GPU's driver says, by nvidia-smi; nothing without a GPU."""

import shutil
import subprocess


def ask(field: str) -> str:
    """Return a field of the first GPU, "" without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def used_mib() -> int:
    """Return the memory in use on the first GPU, 0 without a GPU."""
    used = ask("memory.used")
    return int(used) if used.isdecimal() else 0
