"""Runs an untrusted program with limits on time, memory and files, and without network, by bubblewrap.

The program gets a new, empty working directory, the only place that it can write to, an empty environment, and
namespaces of its own for processes and network. The check of its results runs in another sandbox, so a program can't
pass itself (`confined.py`). Without a working `bwrap` nothing runs, unless the caller allows a weak sandbox. The
program can still read everything that this user may read: run it in a container too.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial

from target_model import confined
from target_model.core import TargetError

_BWRAP = (
    "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/", "/",
    "--dev", "/dev", "--proc", "/proc",
)  # fmt: skip
_OUT_OF_TIME = frozenset(
    {sign * number + base for number in (signal.SIGXCPU, signal.SIGKILL) for sign, base in ((1, 128), (-1, 0))}
)
"""Statuses of a process that used up its processor time, with and without bwrap around it."""


class ProgramResult(Enum):
    """How a program and its check ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Limits:
    """The limits of a program; memory and processor time are for each of at most `num_processes` processes.

    Processor time ends a busy loop, independent of the machine's load; `wall_s` ends a program that waits.
    """

    wall_s: float = 60.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    num_files: int = 32
    num_processes: int = 16
    allow_weak: bool = False
    """Whether to run without bubblewrap: only Python's own sockets are refused, files elsewhere can be changed, and
    processes that leave the program's group outlive it."""


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
    """This machine can't confine a program."""

    def __init__(self, reason: str) -> None:
        """Say how to allow it."""
        super().__init__(
            f"programs can't be confined here: {reason}. Install bubblewrap (`apt-get install bubblewrap`); in Docker "
            "allow namespaces with --security-opt seccomp=unconfined --security-opt apparmor=unconfined, elsewhere "
            "with sysctl kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0. On a "
            "machine that holds nothing else, --allow-weak-sandbox goes on without"
        )


def run_program(checked: CheckedProgram, limits: Limits | None = None) -> ProgramResult:
    """Run a program and its check to the end or to the limits.

    Raises WeakSandboxError when bubblewrap is absent or refused, RuntimeError when the sandbox itself fails.
    """
    limits = limits or Limits()
    wrapper: list[str] = []
    if not limits.allow_weak:
        wrapper = [shutil.which("bwrap") or "", *_BWRAP]
        if not wrapper[0]:
            raise WeakSandboxError("there is no bwrap")
    check = json.dumps({"check": checked.check, "reference": checked.reference}).encode()
    with ExitStack() as stack:
        calls, results = os.pipe(), os.pipe()
        start = partial(_start, stack, wrapper, checked.entry_point, limits)
        try:
            program = start("program", checked.program.encode("utf-8", "replace"), calls[0], results[1])
            checker = start("check", check, results[0], calls[1])
        finally:
            for descriptor in (*calls, *results):
                os.close(descriptor)
        ends_at_s = time.monotonic() + limits.wall_s
        status = _wait(checker, ends_at_s)
        # The program ends when the checker has closed the pipe of its calls.
        statuses = {status, 0 if status == confined.CHECK_HELD else _wait(program, ends_at_s)}
    for said in [process.communicate()[1] for process in (checker, program)]:
        _check(said.decode(errors="replace"))
    if status == confined.CHECK_HELD:
        return ProgramResult.PASSED
    return ProgramResult.TIMED_OUT if statuses & {None, *_OUT_OF_TIME} else ProgramResult.FAILED


def _wait(process: "subprocess.Popen[bytes]", until_s: float) -> int | None:
    """The exit status; None if the process has not ended by then."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, until_s - time.monotonic()))
    return process.returncode


def _check(said: str) -> None:
    """Raise the sandbox's own failure: the program's messages are not kept."""
    if said.startswith("bwrap:"):
        raise WeakSandboxError(said.strip())
    if said:
        raise RuntimeError(f"the sandbox failed: {said[-300:]}")


def _start(
    stack: ExitStack, wrapper: Sequence[str], entry_point: str, limits: Limits, role: str, code: bytes, incoming: int,
    outgoing: int,
) -> "subprocess.Popen[bytes]":  # fmt: skip
    """Start one of the two processes; it is killed when the stack is left."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sandbox-"))
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - arguments have a limit, and no zero bytes
    file.write(code)
    file.seek(0)
    descriptors = (file.fileno(), incoming, outgoing)
    command = [*wrapper, "--bind", folder, folder, "--chdir", folder] if wrapper else []
    command += [sys.executable, "-I", confined.__file__, role, entry_point, json.dumps(asdict(limits))]
    process = subprocess.Popen(
        [*command, *map(str, descriptors)], pass_fds=descriptors, cwd=folder, env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    stack.callback(_kill, process)
    return process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process with its group, also when it has ended: its children may not have."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_programs(
    programs: Iterable[CheckedProgram], limits: Limits | None = None, num_workers: int | None = None
) -> list[ProgramResult]:
    """Run programs in parallel; return their results in order."""
    with ThreadPoolExecutor(num_workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda checked: run_program(checked, limits), programs))
