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
needs_strong = pytest.mark.skipif(not sandbox.IS_STRONG, reason="there is no bubblewrap that works")
NAMES = "def f(x):\n    return abs(x)\n\ndef double(x):\n    return 2 * x\n"
CHECK = "for x in -1, 2.5, 10**30:\n    assert f(x) == abs(x)\nassert f(double(-2)) == 4\n"


def run(program: str, limits: Limits = LIMITS) -> ProgramResult:
    """Run a program to its end."""
    return run_program(CheckedProgram(program), limits)


def run_checked(program: str, check: str = CHECK) -> ProgramResult:
    """Run a program whose function f the check calls; the check's own version of it is NAMES."""
    return run_program(CheckedProgram(program, check, reference=NAMES, entry_point="f"), LIMITS)


@pytest.mark.parametrize(
    ("program", "result"),
    [
        ("pass", ProgramResult.PASSED),
        ("assert 1 == 2", ProgramResult.FAILED),
        ("this is no Python", ProgramResult.FAILED),
        ("x = '\0'", ProgramResult.FAILED),
        ("x = 1  #" + "#" * 300_000, ProgramResult.PASSED),
        ("from __future__ import annotations\nassert __name__ == '__main__'", ProgramResult.PASSED),
        ("import os; assert 'HOME' not in os.environ and os.listdir() == []", ProgramResult.PASSED),
        ("assert input() == 'x'", ProgramResult.FAILED),
        ("raise SystemExit(0)", ProgramResult.FAILED),
        ("exit()", ProgramResult.FAILED),
        ("import os; os._exit(0)", ProgramResult.FAILED),
    ],
)
def test_a_program_passes_when_it_reaches_its_end(program: str, result: ProgramResult) -> None:
    assert run(program) is result


def test_a_program_passes_when_its_function_holds_the_check() -> None:
    assert run_checked(NAMES) is ProgramResult.PASSED
    assert run_checked(NAMES.replace("abs(x)", "x")) is ProgramResult.FAILED
    assert run_checked("def g(x):\n    return x\n") is ProgramResult.FAILED
    assert run_checked(NAMES, "assert f(1) == 2") is ProgramResult.FAILED
    assert run_checked(NAMES, "assert f(x=-1) == 1") is ProgramResult.PASSED
    plain = """def f(x):
    return [x, (x,), {"a": x}, {1, 2}, set(), None, True, b"x", "\\n'", 1.5, 10**30, 1j]
"""
    check = plain.replace("def f(", "def same(") + "assert f('y') == same('y')"
    assert run_checked(plain, check) is ProgramResult.PASSED, "results of all plain types come back as they are"


FORGERIES = {
    "an exit": "import os; os._exit(0)",
    "the status of a pass": "import os; os._exit(10)",
    "the checker's status": "import os; os._exit(20)",
    "a handler at exit": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit",
    "what descriptors take": """
import os
for said in b"done", b"ready\\n", b"10", b"0", b"passed\\n":
    for number in range(64):
        try:
            os.write(number, said)
        except OSError:
            pass
os._exit(0)
""",
    "the caller's frames": """
import os, sys
frame = sys._getframe()
while frame := frame.f_back:
    for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
        if isinstance(value, int):
            try:
                os.write(value, b"done")
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


@pytest.mark.parametrize("program", FORGERIES.values(), ids=FORGERIES.keys())
@pytest.mark.parametrize("allow_weak", [pytest.param(False, marks=needs_strong), True], ids=["strong", "weak"])
def test_no_program_passes_itself(program: str, allow_weak: bool) -> None:
    checked = CheckedProgram(program, CHECK, reference=NAMES, entry_point="f")
    assert run_program(checked, replace(LIMITS, allow_weak=allow_weak)) is ProgramResult.FAILED


@needs_strong
def test_a_program_that_traces_its_sandbox_does_not_pass() -> None:
    assert run_checked(TRACE) is not ProgramResult.PASSED


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


def test_a_program_does_not_see_its_check() -> None:
    assert run_checked(READ_THE_CHECK, "assert f(0) is False  # only the check knows") is ProgramResult.PASSED


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "try:\n    while True: pass\nexcept BaseException:\n    pass\nwhile True: pass",
    ],
)
def test_processor_time_ends(program: str) -> None:
    assert run(program) is ProgramResult.TIMED_OUT


def test_processor_time_of_a_call_and_waiting_end() -> None:
    assert run_checked("def f(x):\n    while True: pass") is ProgramResult.TIMED_OUT
    assert run("import time; time.sleep(600)", replace(LIMITS, wall_s=0.5)) is ProgramResult.TIMED_OUT


@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(1 << 31)",
        "open('big', 'wb').write(bytes(1 << 22))",
        "files = [open(str(n), 'w') for n in range(100)]",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))",
    ],
)
def test_programs_over_their_limits_fail(program: str) -> None:
    assert run(program) is ProgramResult.FAILED


@needs_strong
def test_files_elsewhere_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    for attempt in (
        f"open('{tmp_path}/new', 'w')",
        f"open('{tmp_path}/kept', 'w')",
        f"import os; os.truncate('{tmp_path}/kept', 0)",
        f"import os; os.remove('{tmp_path}/kept')",
        f"import os; os.rename('{tmp_path}/kept', 'mine')",
        f"import os; os.mkdir('{tmp_path}/new')",
        f"import shutil; shutil.rmtree('{tmp_path}')",
    ):
        assert run(attempt) is ProgramResult.FAILED, attempt
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "x")]


def test_its_own_folder_is_free_to_use_and_gone_afterwards() -> None:
    program = """
import os, tempfile
open('a', 'w').write('x'); os.rename('a', 'b'); os.mkdir('c'); os.remove('b')
tempfile.TemporaryFile().write(b'x'); open(os.devnull, 'w').write('x')
"""
    assert run(program) is ProgramResult.PASSED


@needs_strong
@pytest.mark.parametrize("leaves", ["", "os.setsid()\n    os.fork()\n    "])
def test_nothing_that_it_started_outlives_it(leaves: str) -> None:
    mark = f"mark-{os.urandom(8).hex()}"
    sleep = f"os.execv({sys.executable!r}, ['{mark}', '-I', '-c', 'import time; time.sleep(600)'])"
    program = f"import os, time\nif os.fork() == 0:\n    {leaves}{sleep}\ntime.sleep(0.2)"
    assert run(program) is ProgramResult.PASSED
    assert not [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or [])]


@needs_strong
def test_it_does_not_see_other_processes() -> None:
    program = f"import os\ntry:\n    os.kill({os.getpid()}, 0)\nexcept ProcessLookupError:\n    pass"
    assert run(program) is ProgramResult.PASSED


def test_results_come_in_the_order_of_the_programs() -> None:
    programs = [CheckedProgram("pass"), CheckedProgram("assert False")] * 3
    assert run_programs(programs, LIMITS, num_workers=3) == [ProgramResult.PASSED, ProgramResult.FAILED] * 3


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
    assert run_program(CheckedProgram("pass"), Limits(allow_weak=True)) is ProgramResult.PASSED
