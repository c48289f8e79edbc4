"""The inner side of the sandbox, run as a script: confines a child, lets it run the program from standard input.

    sandbox.py -> this script -> its child, which watches -> its child, confined, which becomes the program

The one that watches is the first process of a PID namespace: with it the kernel ends all that the program started,
however fast that forks. Where the kernel allows no namespaces, the script itself watches, and kills what it finds.

Exit status: `PASSED` when the program reached its end, `FAILED` when it ended otherwise, `TIMED_OUT`. That the end was
reached is told through a pipe: a program that exits with status 0 half-way, past its checks, has not passed. When the
program is over, whatever it started is killed, in whichever session it is. The argument is `sandbox.Limits` as JSON.
Knows nothing of this project, and its child imports nothing before it is confined.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import types
from typing import Any, NoReturn

PASSED, FAILED, TIMED_OUT = 0, 10, 11
DONE = b"done"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWUSER, CLONE_NEWPID and CLONE_NEWNET."""
_WATCHERS = 2
"""Processes of the namespace's user that are not the program's."""
_libc = ctypes.CDLL(None)


def main() -> int:
    """Run the program; the status says how it ended."""
    limits = json.loads(sys.argv[1])
    program = sys.stdin.buffer.read()
    is_apart = _libc.unshare(NAMESPACES) == 0
    if is_apart and os.fork():
        return os.waitstatus_to_exitcode(os.wait()[1])
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return watch(program, limits, is_apart)


def watch(program: bytes, limits: dict[str, Any], is_apart: bool) -> int:
    """Run the program in a child; the status says how it ended."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        confine(limits, is_apart)
        become(program, tell)
    os.close(tell)
    is_over = bool(select.select([os.pidfd_open(child)], [], [], limits["wall_s"])[0])
    if not is_over:
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    if not is_apart:
        kill_descendants()
    # Who ignores the signal is killed a second later.
    is_spent = os.waitstatus_to_exitcode(status) == -signal.SIGXCPU or used.ru_utime + used.ru_stime >= limits["cpu_s"]
    if not is_over or is_spent:
        return TIMED_OUT
    return PASSED if status == 0 and os.read(told, len(DONE)) == DONE else FAILED


def become(program: bytes, tell: int) -> NoReturn:
    """Run the program as the main module of this process; tell when its end is reached."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(program, "program.py", "exec"), module.__dict__)
    os.write(tell, DONE)
    os._exit(0)


def kill_descendants() -> None:
    """End all that is left: orphans come to this process, their reaper, however far they went."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def confine(limits: dict[str, Any], is_apart: bool) -> None:
    """Limits on this process and all that it starts, for good."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    if is_apart:
        # In a namespace of its own, else the user's other processes would count too. Root's are never counted.
        most = limits["num_processes"] + _WATCHERS
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    else:
        socket.socket = _Refused  # type: ignore[misc]
    forbid_writing_elsewhere()
    for what, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["num_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # At the first limit a signal that may be caught; at the second the kernel kills.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))


class _Refused(socket.socket):
    """What is left to do against the network without the right to make namespaces."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OSError("no network")


# Landlock (Linux 5.13 and later, no rights needed): linux/landlock.h. Its three calls have these numbers everywhere.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))
_TCP, _SIGNALS_AND_ABSTRACT_SOCKETS = 0b11, 0b11
_VERSIONS = {"refer": 2, "truncate": 3, "network": 4, "scope": 6}


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("files", ctypes.c_uint64), ("folder", ctypes.c_int32))


def forbid_writing_elsewhere() -> None:
    """No file is made, changed or removed outside the working directory; no TCP; no signals to other processes.

    As much of this as the kernel knows; nothing on one without Landlock.
    """
    version = _libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    if version < 1:
        return
    beneath = _WRITE_FILE | (_TRUNCATE if version >= _VERSIONS["truncate"] else 0)
    everything = beneath | _CHANGE_FOLDERS | (_REFER if version >= _VERSIONS["refer"] else 0)
    rules = _Ruleset(everything, _TCP, _SIGNALS_AND_ABSTRACT_SOCKETS)
    size = 8 * (1 + (version >= _VERSIONS["network"]) + (version >= _VERSIONS["scope"]))
    ruleset = _libc.syscall(_CREATE_RULESET, ctypes.byref(rules), size, 0)
    for path, allowed in ((".", everything), (os.devnull, beneath)):
        folder = os.open(path, os.O_PATH)
        _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, folder)), 0)
        os.close(folder)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


if __name__ == "__main__":
    sys.exit(main())
