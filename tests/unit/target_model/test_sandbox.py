"""Programs that a model wrote: what they may do, what ends them, and that none passes its own check."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from target_model.sandbox import (
    CheckedProgram,
    Limits,
    ProgramResult,
    WeakSandboxError,
    confined,
    run_program,
    run_programs,
)
from tests.support import sandbox

LIMITS = replace(sandbox.LIMITS, cpu_s=1, wall_s=10.0)
PASSED, FAILED, TIMED_OUT = ProgramResult
needs_strong = pytest.mark.skipif(not sandbox.IS_STRONG, reason="there is no bubblewrap that works")
NAMES = "def f(x):\n    return abs(x)\n\ndef double(x):\n    return 2 * x\n"
CHECK = "for x in -1, 2.5, 10**30:\n    assert f(x) == abs(x)\nassert f(double(-2)) == 4\n"
PLAIN = """def f(x):
    return [x, (x,), {"a": x}, {1, 2}, set(), None, True, b"x", "\\n'", 1.5, 10**30, 1j]
"""
OWN_FOLDER = """
import os, tempfile
assert 'HOME' not in os.environ and os.listdir() == []
open('a', 'w').write('x'); os.rename('a', 'b'); os.mkdir('c'); os.remove('b')
tempfile.TemporaryFile().write(b'x'); open(os.devnull, 'w').write('x')
"""


def run(program: str, limits: Limits = LIMITS) -> ProgramResult:
    """Run a program to its end."""
    return run_program(CheckedProgram(program), limits)


def run_checked(program: str, check: str = CHECK, limits: Limits = LIMITS) -> ProgramResult:
    """Run a program whose function f the check calls; the check's own version of it is NAMES."""
    return run_program(CheckedProgram(program, check, reference=NAMES, entry_point="f"), limits)


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("x = 1  #" + "#" * 300_000, PASSED),
        ("from __future__ import annotations\nassert __name__ == '__main__'", PASSED),
        (OWN_FOLDER, PASSED),
        ("assert 1 == 2", FAILED),
        ("this is no Python", FAILED),
        ("x = '\0'", FAILED),
        ("assert input() == 'x'", FAILED),
        ("raise SystemExit(0)", FAILED),
        ("import os; os._exit(0)", FAILED),
        ("x = bytearray(1 << 31)", FAILED),
        ("open('big', 'wb').write(bytes(1 << 22))", FAILED),
        ("files = [open(str(n), 'w') for n in range(100)]", FAILED),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", FAILED),
        ("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))", FAILED),
        ("import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", TIMED_OUT),
        ("try:\n    while True: pass\nexcept BaseException:\n    pass\nwhile True: pass", TIMED_OUT),
    ],
)
def test_a_program_passes_when_it_reaches_its_end_within_its_limits(program: str, result: ProgramResult) -> None:
    assert run(program) is result


@pytest.mark.parametrize(
    ("program", "check", "result"),
    [
        (NAMES, CHECK, PASSED),
        (NAMES, "assert f(x=-1) == 1", PASSED),
        (PLAIN, PLAIN.replace("def f(", "def same(") + "assert f('y') == same('y')", PASSED),
        (NAMES, "assert f(1) == 2", FAILED),
        (NAMES.replace("abs(x)", "x"), CHECK, FAILED),
        ("def g(x):\n    return x\n", CHECK, FAILED),
        ("def f(x):\n    while True: pass", CHECK, TIMED_OUT),
    ],
)
def test_a_program_passes_when_its_function_holds_the_check(program: str, check: str, result: ProgramResult) -> None:
    assert run_checked(program, check) is result


def test_waiting_ends_and_results_come_in_the_order_of_the_programs() -> None:
    assert run("import time; time.sleep(600)", replace(LIMITS, wall_s=0.5)) is TIMED_OUT
    programs = [CheckedProgram("pass"), CheckedProgram("assert False")] * 2
    assert run_programs(programs, LIMITS, num_workers=2) == [PASSED, FAILED] * 2


FORGERIES = {
    "the checker's status": "import os; os._exit(20)",
    "a handler at exit": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit",
    "what descriptors take": """
import os
for said in b"done", b"ready\\n", b"20", b"0", b"passed\\n":
    for number in range(64):
        try:
            os.write(number, said)
        except OSError:
            pass
os._exit(0)
""",
    "an object that equals everything": """
class Any(int):
    def __eq__(self, other): return True
    def __repr__(self): return "Any()"
def f(x): return Any()
""",
    "a changed check": """
import builtins
builtins.abs = lambda x: 0
def check(*_): pass
def f(x): return 0
""",
    "code as a result": """
class Code:
    def __repr__(self): return "__import__('os')._exit(20)"
def f(x): return Code()
""",
}
TRACE = """
import ctypes, os, time
def f(x):
    libc = ctypes.CDLL(None)
    for pid in os.getppid(), os.getpid() + 1:
        if libc.ptrace(16, pid, 0, 0) == 0:
            os._exit(99)
        try:
            open(f"/proc/{pid}/mem", "r+b").write(b"x")
        except OSError:
            pass
    return 0
"""
READ_THE_CHECK = """
import gc, glob, os, sys
def f(x):
    seen = []
    frame = sys._getframe()
    while frame := frame.f_back:
        seen.append(repr(frame.f_locals) + repr(frame.f_globals))
    seen += [repr(found) for found in gc.get_objects() if isinstance(found, (list, tuple, dict, str, bytes))]
    for path in glob.glob("/proc/*/fd/*") + glob.glob("/proc/*/mem") + ["/proc/self/environ"]:
        try:
            seen.append(repr(os.pread(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1 << 16, 0)))
        except OSError:
            pass
    sought = " ".join(["only", "the", "check", "knows"])
    return any(sought in text for text in seen)
"""


@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES.keys())
@pytest.mark.parametrize("allow_weak", [pytest.param(False, marks=needs_strong), True], ids=["strong", "weak"])
def test_no_program_passes_itself(program: str, allow_weak: bool) -> None:
    assert run_checked(program, limits=replace(LIMITS, allow_weak=allow_weak)) is FAILED


@needs_strong
def test_a_program_that_traces_its_sandbox_does_not_pass() -> None:
    assert run_checked(TRACE, limits=replace(LIMITS, wall_s=5.0)) is not PASSED


def test_a_program_does_not_see_its_check() -> None:
    assert run_checked(READ_THE_CHECK, "assert f(0) is False  # only the check knows") is PASSED


@needs_strong
def test_files_elsewhere_stay_as_they_are_and_other_processes_are_not_seen(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    attempts = "\n".join(
        f"try:\n    {attempt}\n    os._exit(1)\nexcept OSError:\n    pass"
        for attempt in (
            f"open('{tmp_path}/new', 'w')",
            f"os.truncate('{tmp_path}/kept', 0)",
            f"os.remove('{tmp_path}/kept')",
            f"os.rename('{tmp_path}/kept', 'mine')",
            f"os.kill({os.getpid()}, 0)",
        )
    )
    assert run(f"import os\n{attempts}") is PASSED, "each was refused"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "x")]


@needs_strong
@pytest.mark.parametrize("leaves", ["", "os.setsid()\n    os.fork()\n    "])
def test_nothing_that_it_started_outlives_it(leaves: str) -> None:
    mark = f"mark-{os.urandom(8).hex()}"
    sleep = f"os.execv({sys.executable!r}, ['{mark}', '-I', '-c', 'import time; time.sleep(600)'])"
    program = f"import os, time\nif os.fork() == 0:\n    {leaves}{sleep}\ntime.sleep(0.2)"
    assert run(program) is PASSED
    assert not [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or [])]


def test_a_sandbox_that_fails_itself_gives_no_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise OSError('no processes left')")
    monkeypatch.setattr(confined, "__file__", str(broken))
    with pytest.raises(RuntimeError, match="no processes left"):
        run("pass")


@pytest.mark.parametrize(
    ("script", "reason"), [("", "there is no bwrap"), ("echo 'bwrap: No permissions' >&2; exit 1", "No permissions")]
)
def test_without_a_working_bubblewrap_no_program_runs_unless_weak_sandboxes_are_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, reason: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(WeakSandboxError, match=f"{reason}.*--allow-weak-sandbox"):
        run_program(CheckedProgram("pass"))
    assert run_program(CheckedProgram("pass"), Limits(allow_weak=True)) is PASSED
