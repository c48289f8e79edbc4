import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from target_model import confined
from target_model.sandbox import Limits, Verdict, run_program, run_programs

LIMITS = Limits(cpu_s=1)
UNSHARE = f"import ctypes; exit(ctypes.CDLL(None).unshare({confined.NAMESPACES}) != 0)"


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("pass", Verdict.PASSED),
        ("assert 1 == 2", Verdict.FAILED),
        ("this is no Python", Verdict.FAILED),
        ("x = '\0'", Verdict.FAILED),
        ("x = 1  #" + "#" * 300_000, Verdict.PASSED),
        ("from __future__ import annotations\nassert __name__ == '__main__'", Verdict.PASSED),
        ("import os; assert 'HOME' not in os.environ and os.listdir() == []", Verdict.PASSED),
        ("assert input() == 'x'", Verdict.FAILED),
    ],
)
def test_a_program_passes_when_it_reaches_its_end(program: str, verdict: Verdict) -> None:
    assert run_program(program, LIMITS) is verdict


@pytest.mark.parametrize("way_out", ["raise SystemExit(0)", "exit()", "import os; os._exit(0)"])
def test_an_end_half_way_is_none(way_out: str) -> None:
    assert run_program(f"{way_out}\nassert False", LIMITS) is Verdict.FAILED


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import signal; signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
        "try:\n    while True: pass\nexcept BaseException:\n    pass\nwhile True: pass",
    ],
)
def test_processor_time_ends(program: str) -> None:
    assert run_program(program, LIMITS) is Verdict.TIMED_OUT


def test_waiting_ends() -> None:
    assert run_program("import time; time.sleep(600)", Limits(wall_s=0.5)) is Verdict.TIMED_OUT


@pytest.mark.parametrize(
    "program",
    [
        "x = bytearray(1 << 31)",
        "open('big', 'wb').write(bytes(1 << 22))",
        "files = [open(str(n), 'w') for n in range(100)]",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    ],
)
def test_what_takes_too_much_fails(program: str) -> None:
    assert run_program(program, LIMITS) is Verdict.FAILED


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
        assert run_program(attempt, LIMITS) is Verdict.FAILED, attempt
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("kept", "x")]


def test_its_own_folder_is_free_to_use_and_gone_afterwards() -> None:
    program = """
import os, tempfile
open('a', 'w').write('x'); os.rename('a', 'b'); os.mkdir('c'); os.remove('b')
tempfile.TemporaryFile().write(b'x'); open(os.devnull, 'w').write('x')
"""
    assert run_program(program, LIMITS) is Verdict.PASSED


@pytest.mark.parametrize("leaves", ["", "os.setsid()\n    ", "os.setsid()\n    os.fork()\n    "])
def test_nothing_that_it_started_outlives_it(leaves: str) -> None:
    mark = f"mark-{os.urandom(8).hex()}"
    sleep = f"os.execv({sys.executable!r}, ['{mark}', '-I', '-c', 'import time; time.sleep(600)'])"
    program = f"import os, time\nif os.fork() == 0:\n    {leaves}{sleep}\ntime.sleep(0.2)"
    assert run_program(program, LIMITS) is Verdict.PASSED
    assert not [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or [])]


@pytest.mark.skipif(
    subprocess.run(
        [sys.executable, "-c", UNSHARE], check=False
    ).returncode != 0,
    reason="this kernel allows no namespaces",
)  # fmt: skip
def test_other_processes_are_out_of_its_sight() -> None:
    program = f"import os\ntry:\n    os.kill({os.getpid()}, 0)\nexcept ProcessLookupError:\n    pass"
    assert run_program(program, LIMITS) is Verdict.PASSED


def test_verdicts_come_in_the_order_of_the_programs() -> None:
    programs = ["pass", "assert False"] * 3
    assert run_programs(programs, LIMITS, num_workers=3) == [Verdict.PASSED, Verdict.FAILED] * 3


def test_a_sandbox_that_fails_itself_gives_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise OSError('no processes left')")
    monkeypatch.setattr(confined, "__file__", str(broken))
    with pytest.raises(RuntimeError, match="no processes left"):
        run_program("pass")
