"""Runs a program that nobody has read: in a process of its own, with limits on time, memory and files, and no network.

The process gets a new, empty working directory, which is all it can write to, an empty environment, and where the
kernel allows it a network namespace without any device (`confined.py`). This holds off what a small model writes by
accident, not an attacker: run it in a container too.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import Enum

from target_model import confined

GRACE_S = 30.0
"""For the interpreter's start and end, beyond the program's own time."""


class Verdict(Enum):
    """How a program ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"


_VERDICTS = {
    confined.PASSED: Verdict.PASSED,
    confined.FAILED: Verdict.FAILED,
    confined.TIMED_OUT: Verdict.TIMED_OUT,
    -signal.SIGKILL: Verdict.TIMED_OUT,
}


@dataclass(frozen=True)
class Limits:
    """What a program may take; memory and processor time are each process's, of `num_processes` at most.

    Processor time is what ends a loop, the same on a busy machine; `wall_s` ends one that waits.
    """

    wall_s: float = 30.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    num_files: int = 32
    num_processes: int = 16


def run_program(program: str, limits: Limits | None = None) -> Verdict:
    """Run a program to its end or to its limits. It passed if it reached its end without an error.

    Raises RuntimeError when the sandbox itself fails: no verdict is given then.
    """
    limits = limits or Limits()
    with tempfile.TemporaryFile() as source, tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        # Not as an argument: those have a limit, and no zero bytes.
        source.write(program.encode("utf-8", "replace"))
        source.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", confined.__file__, json.dumps(asdict(limits))],
            cwd=folder, env={"PATH": os.defpath}, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        with process:
            try:
                _, errors = process.communicate(timeout=limits.wall_s + GRACE_S)
            except subprocess.TimeoutExpired:
                errors = b""
            finally:
                process.kill()
    if process.returncode not in _VERDICTS:
        raise RuntimeError(f"the sandbox ended with {process.returncode}: {errors.decode(errors='replace')[-300:]}")
    return _VERDICTS[process.returncode]


def run_programs(
    programs: Iterable[str], limits: Limits | None = None, num_workers: int | None = None
) -> list[Verdict]:
    """Run many, some at a time, in order."""
    with ThreadPoolExecutor(num_workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda program: run_program(program, limits), programs))
