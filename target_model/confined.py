"""The inner side of the sandbox, run as a script: confines a program, calls it and checks its results.

    sandbox.py -> this script -> its child, the watcher -> the program, confined
                                                        -> the checker, confined

The program and the code that checks it run in processes of their own. The checker holds a trusted version of the
program (the task's own solution) and the check. When the check calls the tested function, the arguments go to the
program through a pipe, and its result comes back as a Python literal. The result is the checker's exit status, which
the program can't set: it shares no memory with the checker, may not trace it, and does not see the check. So a program
does not pass if it exits half-way, writes to the descriptors that it inherits, or returns objects that claim to equal
everything. It can still read everything that this user may read, including a file with the answers; and it can kill the
checker, which fails it.

The watcher is the first process of a PID namespace: when it ends, the kernel ends all processes that the program
started, however fast they fork. If the kernel gives no namespaces, and the caller allows that, the script itself
watches the processes and kills those that it finds.

Exit status: `PASSED`, `FAILED`, `TIMED_OUT` or `TOO_WEAK`, with the missing kernel features on standard error.
The arguments are `sandbox.Limits` as JSON, the name of the function, and the descriptor from which the checker reads
its code as JSON; the program is on standard input. Imports nothing of this project, and nothing after it is confined.
"""

import ast
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import types
from typing import Any, NoReturn

PASSED, FAILED, TIMED_OUT, TOO_WEAK = 10, 11, 12, 13
"""None of them is 0, the exit status of any program without an error."""
_CHECK_HELD = 20
"""The checker's exit status when the check ran to its end."""
_READY = b"ready\n"
_MAX_RESULT_BYTES = 1 << 24

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000
"""CLONE_NEWUSER, CLONE_NEWPID and CLONE_NEWNET."""
_WATCHERS = 3
"""Processes of the sandbox itself, which the limit counts too."""
_libc = ctypes.CDLL(None, use_errno=True)
# Landlock (Linux 5.13 and later, no rights needed): linux/landlock.h. Its three calls have these numbers everywhere.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))
_TCP, _SIGNALS_AND_ABSTRACT_SOCKETS = 0b11, 0b11
_VERSIONS = {"refer": 2, "truncate": 3, "network": 4, "scope": 6}


def main() -> int:
    """Run the program and its check; return the exit status."""
    limits, program = json.loads(sys.argv[1]), sys.stdin.buffer.read()
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # processes of the same user may not trace this or read its descriptors
    refusal = landlock_refusal()  # before `unshare`: the next child is the first process of the PID namespace
    is_apart = _libc.unshare(NAMESPACES) == 0
    missing = [] if is_apart else [f"user, PID and network namespaces ({os.strerror(ctypes.get_errno())})"]
    missing += [f"Landlock ({os.strerror(refusal)})"] if refusal else []
    if missing and not limits["allow_weak"]:
        sys.stderr.write(" and ".join(missing))
        return TOO_WEAK
    if is_apart and os.fork():
        return os.waitstatus_to_exitcode(os.wait()[1])
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return watch(program, limits, is_apart)


def watch(source: bytes, limits: dict[str, Any], is_apart: bool) -> int:
    """Run the program and its check in two children; return the exit status."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    entry_point, check = sys.argv[2], int(sys.argv[3])
    calls, results = os.pipe(), os.pipe()
    program = os.fork()
    if program == 0:
        close(calls[1], results[0], check)
        confine(limits, is_apart)
        serve(source, entry_point, calls[0], results[1])
    checker = os.fork()
    if checker == 0:
        close(calls[0], results[1])
        confine(limits, is_apart)
        judge(check, entry_point, calls[1], results[0])
    close(*calls, *results, check)
    # The program ends by itself only if it fails: after the last call it waits to be killed.
    has_ended = bool(select.select([os.pidfd_open(program), os.pidfd_open(checker)], [], [], limits["wall_s"])[0])
    statuses = [stop(child, limits["cpu_s"]) for child in (program, checker)]
    if not is_apart:
        kill_descendants()
    if not has_ended or None in statuses:
        return TIMED_OUT
    return PASSED if statuses[1] == _CHECK_HELD else FAILED


def close(*descriptors: int) -> None:
    """Close them all."""
    for descriptor in descriptors:
        os.close(descriptor)


def stop(child: int, cpu_s: int) -> int | None:
    """Kill a child, if it has not ended, and return its exit code; None if it used up its processor time."""
    os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    # A process that ignores the signal is killed a second later.
    return None if code == -signal.SIGXCPU or used.ru_utime + used.ru_stime >= cpu_s else code


def serve(source: bytes, entry_point: str, calls: int, results: int) -> NoReturn:
    """Run the program as the main module of this process, then answer calls of its function until it is killed."""
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    names = run_as_main(source)
    with os.fdopen(calls, "rb") as incoming, os.fdopen(results, "wb", buffering=0) as outgoing:
        outgoing.write(_READY)
        for line in incoming:
            args, kwargs = ast.literal_eval(line.decode())
            outgoing.write(repr(names[entry_point](*args, **kwargs)).encode() + b"\n")
    while True:
        signal.pause()


def judge(check: int, entry_point: str, calls: int, results: int) -> NoReturn:
    """Run the check against the program in the other process; exit with `_CHECK_HELD` if it comes to its end."""
    with os.fdopen(check, "rb") as file:
        code = json.load(file)
    names = run_as_main(code["reference"])
    with os.fdopen(calls, "wb", buffering=0) as outgoing, os.fdopen(results, "rb") as incoming:
        if incoming.readline(len(_READY)) != _READY:
            os._exit(1)

        def call(*args: object, **kwargs: object) -> object:
            outgoing.write(repr((args, kwargs)).encode() + b"\n")
            return ast.literal_eval(incoming.readline(_MAX_RESULT_BYTES).decode())

        names[entry_point] = call
        exec(compile(code["check"], "check.py", "exec"), names)
    os._exit(_CHECK_HELD)


def run_as_main(source: str | bytes) -> dict[str, Any]:
    """Run code as the main module of this process and return its names."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(source, "program.py", "exec"), module.__dict__)
    return module.__dict__


def kill_descendants() -> None:
    """Kill all remaining processes: orphans of any depth become children of this process, their reaper."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def confine(limits: dict[str, Any], is_apart: bool) -> None:
    """Limit this process and all its descendants, irrevocably."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    if is_apart:
        # Only inside a namespace, where the user's other processes do not count. Root's processes are never counted.
        most = limits["num_processes"] + _WATCHERS
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    else:
        socket.socket = _Refused  # type: ignore[misc]
    if forbid_writing_elsewhere() and not limits["allow_weak"]:
        os._exit(1)
    for what, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["num_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # The first limit sends a signal that may be caught; at the second the kernel kills.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))


class _Refused(socket.socket):
    """Refuses Python's own sockets, for a kernel without namespaces."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OSError("no network")


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("files", ctypes.c_uint64), ("folder", ctypes.c_int32))


def landlock_version() -> int:
    """Return the version of the kernel's Landlock, below 1 if it has none."""
    version: int = _libc.syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)
    return version


def landlock_refusal() -> int:
    """Try Landlock in a child; return the error number with which the kernel refuses it, 0 if it does not.

    A kernel with Landlock may refuse it, too: it stacks at most 16 rulesets, and a container may filter the calls.
    """
    child = os.fork()
    if child == 0:
        os._exit(forbid_writing_elsewhere())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forbid_writing_elsewhere() -> int:
    """No file is made, changed or removed outside the working directory; no TCP; no signals to other processes.

    Applies the parts that the kernel supports. Returns the error number with which it refuses, 0 if it does not.
    """
    version = landlock_version()
    if version < 1:
        return ctypes.get_errno() or errno.ENOSYS
    beneath = _WRITE_FILE | (_TRUNCATE if version >= _VERSIONS["truncate"] else 0)
    everything = beneath | _CHANGE_FOLDERS | (_REFER if version >= _VERSIONS["refer"] else 0)
    rules = _Ruleset(everything, _TCP, _SIGNALS_AND_ABSTRACT_SOCKETS)
    size = 8 * (1 + (version >= _VERSIONS["network"]) + (version >= _VERSIONS["scope"]))
    try:
        ruleset = checked(_libc.syscall(_CREATE_RULESET, ctypes.byref(rules), size, 0))
        for path, allowed in ((".", everything), (os.devnull, beneath)):
            folder = os.open(path, os.O_PATH)
            checked(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, folder)), 0))
            os.close(folder)
        checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        checked(_libc.syscall(_RESTRICT_SELF, ruleset, 0))
        os.close(ruleset)
    except OSError as error:
        return error.errno or errno.EPERM
    return 0


def checked(result: int) -> int:
    """Return the result of a call of the kernel. Raises OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


if __name__ == "__main__":
    sys.exit(main())
