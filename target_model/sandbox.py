"""Runs a program that nobody has read: in a process of its own, with limits on time, memory and files, and no network.

The process gets a new, empty working directory, an empty environment, and where the kernel allows it a network
namespace without any device. This holds off what a small model writes by accident, not an attacker: run it in a
container too.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_NO_NETWORK = "import socket\ndef _refuse(*_, **__): raise OSError('no network')\nsocket.socket = _refuse\ndel socket\n"


class Verdict(Enum):
    """How a program ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Limits:
    """What a program may take."""

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    num_files: int = 32


def run_program(program: str, limits: Limits | None = None) -> Verdict:
    """Run a program to its end or to its limits. It passed if it ended by itself without an error."""
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _NO_NETWORK + program],
            cwd=folder, env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=partial(_confine, limits),
        )  # fmt: skip
        try:
            status = process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            return Verdict.TIMED_OUT
        finally:
            _kill_all(process)
    if status == -signal.SIGXCPU:
        return Verdict.TIMED_OUT
    return Verdict.PASSED if status == 0 else Verdict.FAILED


def run_programs(
    programs: Iterable[str], limits: Limits | None = None, num_workers: int | None = None
) -> list[Verdict]:
    """Run many, some at a time, in order."""
    with ThreadPoolExecutor(num_workers or os.cpu_count() or 1) as pool:
        return list(pool.map(lambda program: run_program(program, limits), programs))


def _confine(limits: Limits) -> None:
    """In the new process, before it becomes the program."""
    for what, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.num_files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # At the first limit the signal tells why; at the second the kernel kills.
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))
    # Its failure is not told: without the right to make namespaces the refusing socket module is what is left.
    ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def _kill_all(process: "subprocess.Popen[bytes]") -> None:
    """End the program and whatever it started in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
