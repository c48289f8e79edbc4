"""A test that hangs is told with its await, and repeated runs are counted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.models import ROOT
from tests.support.redis_servers import wait_until
from tests.support.repeat import Run

HANGS = """
import asyncio
import pytest

async def part() -> None:
    await asyncio.Event().wait()  # what never comes

@pytest.mark.timeout(0.2)
async def test_one() -> None:
    waiting = asyncio.create_task(part(), name="a part")
    await asyncio.sleep(60)

async def test_next() -> None:
    pass
"""


def test_a_test_that_hangs_fails_with_the_awaits_of_all_tasks_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    command = (sys.executable, "-m", "pytest", "-p", "tests.support.limits", "--asyncio-mode=auto", str(tmp_path))
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "1 failed, 1 passed" in done.stdout
    told = done.stdout.partition("no end within 0.2 s; the tasks wait here:")[2]
    assert "await asyncio.sleep(60)" in told
    assert "in part\n    await asyncio.Event().wait()  # what never comes" in told.partition("a part:")[2]


OUTPUT = """
FAILED tests/a.py::test_one[a b] - AssertionError: assert 1 - 1
ERROR tests/b.py::test_two
1 failed, 40 passed, 2 skipped, 1 error in 352.12s (0:05:52)
ERROR    asyncio:base_events.py:1758 a line of a log
5 passed, 40 deselected in 1.00s
"""


def test_the_counts_of_all_parts_of_a_run_are_added() -> None:
    assert Run.of_output(OUTPUT, 2, 3.0) == Run(45, 2, 3.0, ("tests/a.py::test_one[a b]", "tests/b.py::test_two"))
    assert Run.of_output("", 2, 3.0) == Run(0, 1, 3.0, ("the command ended with status 2",))
    assert Run.of_output("5 passed in 1.0s", 0, 3.0) == Run(5, 0, 3.0, ())


def repeat(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = (sys.executable, "-m", "tests.support.repeat", *arguments)
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)


def test_failures_of_any_run_are_listed_and_fail_the_whole(tmp_path: Path) -> None:
    said = "FAILED tests/a.py::test_one - why\n1 failed, 4 passed in 1.00s"
    with repeat(tmp_path, "2", "sh", "-c", f"echo '{said}'; exit 1") as running:
        output, _ = running.communicate(timeout=60)
    assert running.returncode == 1
    rows = [line.split() for line in output.splitlines()[1:3]]
    assert [row[1:3] + row[4:] for row in rows] == [["4", "1", "tests/a.py::test_one"]] * 2


def test_an_interrupt_ends_what_was_started(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    with repeat(tmp_path, "2", "sh", "-c", f"echo $$ > {started}; exec sleep 600") as running:
        wait_until(lambda: started.exists() and bool(started.read_text().strip()))
        child = psutil.Process(int(started.read_text()))
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
