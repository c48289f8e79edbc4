"""Runs an untrusted program in a process of its own, with limits on time, memory and files, and without network.

The process gets a new, empty working directory, the only place that it can write to, an empty environment and a network
namespace without any device. The check of its results runs in another process, so a program can't pass itself
(`confined.py`). A kernel that lacks namespaces or Landlock is refused, unless the caller allows a weak sandbox. The
program can still read everything that this user may read: run it in a container too.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum
from typing import IO

from target_model import confined
from target_model.core import TargetError

GRACE_S = 30.0
"""Time for the interpreter's start and end, besides the program's own."""


class ProgramResult(Enum):
    """How a program and its check ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"


_RESULTS = {
    confined.PASSED: ProgramResult.PASSED,
    confined.FAILED: ProgramResult.FAILED,
    confined.TIMED_OUT: ProgramResult.TIMED_OUT,
    -signal.SIGKILL: ProgramResult.TIMED_OUT,
}


@dataclass(frozen=True)
class Limits:
    """The limits of a program; memory and processor time are for each of at most `num_processes` processes.

    Processor time ends a busy loop, independent of the machine's load; `wall_s` ends a program that waits.
    """

    wall_s: float = 30.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    num_files: int = 32
    num_processes: int = 16
    allow_weak: bool = False
    """Whether to run on a kernel that can't fully confine a program: without namespaces only Python's own sockets are
    refused and fast forks may escape; without Landlock files elsewhere can be changed."""


@dataclass(frozen=True)
class CheckedProgram:
    """A program, and the code that checks it."""

    program: str
    check: str = ""
    """Code that passes by running to its end. Without a check the program passes if it runs to its own end."""
    reference: str = ""
    """A trusted version of the program, whose other names the check may use."""
    entry_point: str = ""
    """The function whose calls in the check go to the program; arguments and results are Python literals."""


class WeakSandboxError(TargetError):
    """The kernel can't confine a program."""

    def __init__(self, missing: str) -> None:
        """Name the missing features, and the settings that allow them."""
        super().__init__(
            f"programs can't be confined here: the kernel gives this process no {missing}. In Docker allow them with "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined; elsewhere with sysctl "
            "kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0. On a machine "
            "that holds nothing else, --allow-weak-sandbox goes on without"
        )


def run_program(checked: CheckedProgram, limits: Limits | None = None) -> ProgramResult:
    """Run a program and its check to the end or to the limits.

    Raises WeakSandboxError when the kernel can't confine it, RuntimeError when the sandbox itself fails.
    """
    limits = limits or Limits()
    code = json.dumps({"check": checked.check, "reference": checked.reference})
    with (
        # In files: arguments have a limit, and no zero bytes.
        _file_of(checked.program.encode("utf-8", "replace")) as program,
        _file_of(code.encode()) as check,
        tempfile.TemporaryDirectory(prefix="sandbox-") as folder,
    ):
        arguments = (json.dumps(asdict(limits)), checked.entry_point, str(check.fileno()))
        process = subprocess.Popen(
            [sys.executable, "-I", confined.__file__, *arguments], pass_fds=(check.fileno(),),
            cwd=folder, env={"PATH": os.defpath}, stdin=program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        with process:
            try:
                _, errors = process.communicate(timeout=limits.wall_s + GRACE_S)
            except subprocess.TimeoutExpired:
                errors = b""
            finally:
                process.kill()
    said = errors.decode(errors="replace")
    if process.returncode == confined.TOO_WEAK:
        raise WeakSandboxError(said)
    if process.returncode not in _RESULTS:
        raise RuntimeError(f"the sandbox ended with {process.returncode}: {said[-300:]}")
    return _RESULTS[process.returncode]


@contextmanager
def _file_of(data: bytes) -> Iterator[IO[bytes]]:
    """Yield an unnamed file that holds `data`, positioned at its start."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        yield file


def run_programs(
    programs: Iterable[CheckedProgram], limits: Limits | None = None, num_workers: int | None = None
) -> list[ProgramResult]:
    """Run programs in parallel; return their results in order."""
    with ThreadPoolExecutor(num_workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda checked: run_program(checked, limits), programs))
