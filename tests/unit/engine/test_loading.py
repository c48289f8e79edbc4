"""Loads that are given up, with real processes. `sleep` stands for the worker of an engine."""

import asyncio
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from completion_server.engine.loading import Loading
from completion_server.engine.processes import child_ids, cpu_seconds, kill_children, with_descendants
from tests.support.cancels import cancel_and_wait
from tests.support.server import eventually
from tests.support.waits import GaveUpError

WAIT_S = 30.0
CONTEXT = multiprocessing.get_context("spawn")


def start_core() -> psutil.Process:
    """Start a process that starts another one and waits for it without end."""
    process = CONTEXT.Process(target=subprocess.run, args=(["sleep", "600"],))
    process.start()
    assert process.pid is not None
    return psutil.Process(process.pid)


class EngineLoad:
    """Loads an engine that is ready after `may_end`, and fails when its core dies, as vLLM does."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.cores: list[psutil.Process] = []
        self.discarded: list[str] = []
        self.loading = Loading(self.load, self.discarded.append)

    def load(self) -> str:
        self.cores.append(start_core())
        while not self.may_end.wait(0.01):
            if not self.cores[-1].is_running() or self.cores[-1].status() == psutil.STATUS_ZOMBIE:
                raise RuntimeError("the core died")
        return "engine"

    def has_worker(self) -> bool:
        return bool(self.cores) and bool(self.cores[0].children())


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    kill_children()
    for child in multiprocessing.active_children():
        child.join(10)


async def given_up(load: EngineLoad) -> None:
    """Begin a load and cancel it when its core has a worker."""
    running = asyncio.create_task(load.loading.run())
    await eventually(load.has_worker)
    await cancel_and_wait(running)


async def test_a_load_that_is_given_up_leaves_no_process_and_kills_no_other() -> None:
    other, load = start_core(), EngineLoad()
    await given_up(load)
    processes = with_descendants([load.cores[0].pid])
    assert len(processes) == 2
    assert await load.loading.give_up() is None
    _gone, alive = psutil.wait_procs(processes, 10)
    assert not alive
    assert not load.discarded
    await eventually(lambda: child_ids() == {other.pid})
    assert other.is_running()


async def test_a_result_that_comes_later_is_discarded_before_another_load_begins() -> None:
    begun, may_end, events = threading.Event(), threading.Event(), []

    def stubborn() -> str:
        begun.set()
        assert may_end.wait(WAIT_S)
        return "late"

    def discard(result: str) -> None:
        time.sleep(0.05)
        events.append(f"discarded {result}")

    def following() -> str:
        events.append("loaded the next one")
        return "next"

    first = Loading(stubborn, discard, give_up_s=0.0)
    running = asyncio.create_task(first.run())
    await eventually(begun.is_set)
    await cancel_and_wait(running)
    assert await first.give_up() is None
    second = asyncio.create_task(Loading(following, discard).run())
    await asyncio.sleep(0.05)
    assert not events
    may_end.set()
    assert await asyncio.wait_for(second, 10) == "next"
    assert events == ["discarded late", "loaded the next one"]


def test_cpu_time_is_that_of_all_processes_that_run() -> None:
    own = psutil.Process(os.getpid())
    ended = start_core()
    ended.kill()
    ended.wait(10)
    before = cpu_seconds([own, ended])
    spin_until(lambda: cpu_seconds([own, ended]) >= before + 0.05)
    assert cpu_seconds([own]) >= before + 0.05


def spin_until(is_done: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + WAIT_S
    while not is_done():
        if time.monotonic() >= ends_s:
            raise GaveUpError(is_done, WAIT_S)
