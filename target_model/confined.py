"""The inner side of the sandbox, run as a script: runs a program, or the code that checks it.

The two run in sandboxes of their own. The checker holds a trusted version of the program (the task's own solution) and
the check. When the check calls the tested function, the arguments go to the program through a pipe, and its result
comes back as a Python literal. The result is the checker's exit status, which the program can't set: it shares no
memory and no process namespace with the checker, and does not see the check. So a program does not pass if it exits
half-way, writes to the descriptors that it inherits, or returns objects that claim to equal everything.

The arguments are the role, the function's name, `sandbox.Limits` as JSON, and the descriptors of the code, of the pipe
to read and of the pipe to write. Imports nothing of this project.
"""

import ast
import json
import os
import resource
import socket
import sys
import types
from typing import Any, NoReturn

CHECK_HELD = 20
"""The checker's exit status when the check ran to its end."""
_READY = b"ready\n"
_MAX_RESULT_BYTES = 1 << 24


def main() -> NoReturn:
    """Run the program or its check."""
    role, entry_point, limits = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    code, incoming, outgoing = map(int, sys.argv[4:])
    with os.fdopen(code, "rb") as file:
        source = file.read()
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    confine(limits)
    with os.fdopen(incoming, "rb") as calls, os.fdopen(outgoing, "wb", buffering=0) as results:
        if role == "check":
            judge(json.loads(source), entry_point, results, calls)
        serve(source, entry_point, calls, results)


def confine(limits: dict[str, Any]) -> None:
    """Limit this process and all its descendants, irrevocably."""
    for what, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["num_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # The first limit sends a signal that may be caught; at the second the kernel kills.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))
    if limits["allow_weak"]:
        socket.socket = _Refused  # type: ignore[misc]
    else:  # Only inside a namespace, where the user's other processes do not count.
        resource.setrlimit(resource.RLIMIT_NPROC, (limits["num_processes"],) * 2)


class _Refused(socket.socket):
    """Refuses Python's own sockets, for a machine without namespaces."""

    def __init__(self, *_: object, **__: object) -> None:
        raise OSError("no network")


def serve(source: bytes, entry_point: str, calls: Any, results: Any) -> NoReturn:  # noqa: ANN401
    """Run the program as the main module of this process, then answer calls of its function until there are no more."""
    names = run_as_main(source)
    results.write(_READY)
    for line in calls:
        args, kwargs = ast.literal_eval(line.decode())
        results.write(repr(names[entry_point](*args, **kwargs)).encode() + b"\n")
    os._exit(0)


def judge(code: dict[str, str], entry_point: str, calls: Any, results: Any) -> NoReturn:  # noqa: ANN401
    """Run the check against the program in the other sandbox; exit with `CHECK_HELD` if it comes to its end."""
    names = run_as_main(code["reference"])
    if results.readline(len(_READY)) != _READY:
        os._exit(1)

    def call(*args: object, **kwargs: object) -> object:
        calls.write(repr((args, kwargs)).encode() + b"\n")
        return ast.literal_eval(results.readline(_MAX_RESULT_BYTES).decode())

    names[entry_point] = call
    exec(compile(code["check"], "check.py", "exec"), names)
    os._exit(CHECK_HELD)


def run_as_main(source: str | bytes) -> dict[str, Any]:
    """Run code as the main module of this process and return its names."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(source, "program.py", "exec"), module.__dict__)
    return module.__dict__


if __name__ == "__main__":
    main()
