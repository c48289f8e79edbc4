"""The operating system's processes of an engine: which they are, what CPU time they have used, and how they are killed.

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
    }  # an ended one's id may be reused


def with_descendants(process_ids: Iterable[int]) -> list[psutil.Process]:
    """Return processes and all that they have started."""
    found: dict[int, psutil.Process] = {}
    for process_id in process_ids:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process_id)
            found |= {process.pid: process for process in (root, *root.children(recursive=True))}
    return list(found.values())


def kill_with_descendants(process_ids: Iterable[int]) -> None:
    """Kill processes and all that they have started, without waiting for their end."""
    ids = list(process_ids)
    for process_id in ids:
        # A process that is stopped starts no other one between the look at its children and its end.
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(process_id).suspend()
    kill(with_descendants(ids))


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, without waiting for their end; nothing happens to one that has ended."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_children() -> None:
    """Kill every process that this process has started with `multiprocessing`, and all that those have started."""
    kill_with_descendants(child_ids())


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU time that those of these processes that still run have used."""
    seconds = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds
