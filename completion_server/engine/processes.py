"""Finds and kills the operating system's processes of an engine, and sums up their CPU time.

Imports nothing of vLLM.
"""

import contextlib
import multiprocessing
from collections.abc import Iterable

import psutil


def child_ids() -> set[int]:
    """Return the ids of the processes that this process has started with `multiprocessing`."""
    started = {child.pid for child in multiprocessing.active_children()}
    return {
        child.pid for child in psutil.Process().children() if child.pid in started
    }  # the id of an ended process may be reused


def with_descendants(process_ids: Iterable[int]) -> list[psutil.Process]:
    """Return processes and their descendants."""
    found: dict[int, psutil.Process] = {}
    for process_id in process_ids:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process_id)
            found |= {process.pid: process for process in (root, *root.children(recursive=True))}
    return list(found.values())


def kill_with_descendants(process_ids: Iterable[int]) -> None:
    """Kill processes and their descendants, without waiting for their end."""
    ids = list(process_ids)
    for process_id in ids:
        # A suspended process can't start another one before it is killed.
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(process_id).suspend()
    kill(with_descendants(ids))


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, without waiting for their end. Processes that have ended are skipped."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_children() -> None:
    """Kill every process that this process has started with `multiprocessing`, and their descendants."""
    kill_with_descendants(child_ids())


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time of those of the processes that still run."""
    seconds = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds
