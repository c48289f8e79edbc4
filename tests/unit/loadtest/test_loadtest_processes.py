"""Child processes, of which one has a process in another process group, as a server's engine is."""

import sys
import textwrap
from collections.abc import Iterator

import psutil
import pytest

from loadtest.processes.child import Child
from tests.support.redis_servers import wait_until

TALKER = textwrap.dedent("""
    import json, os, subprocess, sys, time
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
    print(json.dumps({"inner": inner.pid}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"answer": line.strip()}), flush=True)
""")


@pytest.fixture
def child() -> Iterator[Child]:
    with Child("talker", [sys.executable, "-c", TALKER], is_piped=True) as started:
        yield started


def is_suspended(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_pause_suspends_every_process_of_its_session_and_resume_continues_them(child: Child) -> None:
    inner = child.read_json(30)["inner"]
    with Child("other", [sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        child.pause()
        wait_until(lambda: is_suspended(child.pid) and is_suspended(inner))
        assert not is_suspended(other.pid)
        child.resume()
        wait_until(lambda: not is_suspended(child.pid) and not is_suspended(inner))
    assert child.ask({}, 30) == {"answer": "{}"}


def test_a_suspended_process_can_be_stopped() -> None:
    child = Child("talker", [sys.executable, "-c", TALKER], is_piped=True)
    inner = child.read_json(30)["inner"]
    child.pause()
    child.stop()
    assert not psutil.pid_exists(child.pid)
    psutil.Process(inner).kill()  # in its own group: an engine ends because it watches the server
