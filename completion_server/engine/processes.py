"""Finds and kills the operating system's processes of an engine, and sums up their CPU time.

Imports nothing of vLLM.
"""

import contextlib
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil

_SHARED_MEMORY = Path("/dev/shm")
_POLL_S = 0.01


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


def still_running(known: Iterable[psutil.Process], process_ids: Iterable[int]) -> list[psutil.Process]:
    """Return those of the known processes that still run, the processes of the ids, and the descendants of both.

    The children of a process that has died are no descendants of it any more, so they must be known from before.
    """
    return with_descendants([*(process.pid for process in known if process.is_running()), *process_ids])


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


def kill_and_wait(processes: Sequence[psutil.Process], timeout_s: float) -> None:
    """Kill processes and wait until they have ended, but not until their parents have noticed."""
    kill(processes)
    deadline = time.monotonic() + timeout_s
    while any(map(runs, processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def runs(process: psutil.Process) -> bool:
    """Tell whether a process may have files open: a zombie may, as long as one of its threads has not ended."""
    try:
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.NoSuchProcess:
        return False


class Remnants:
    """The socket files and the shared memory of processes, which they leave behind when they are killed."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        """Find them, while the processes run."""
        self._sockets: set[Path] = set()
        self._memories = set(_open_memories(processes))
        for process in processes:
            with contextlib.suppress(psutil.Error):
                self._sockets |= set(_bound_sockets(process))

    def remove(self) -> None:
        """Remove those that are still there and that no process has open, after the processes have ended."""
        if self._sockets:
            bound = {Path(str(each.laddr)) for each in psutil.net_connections("unix") if each.laddr}
            for path in self._sockets - bound:
                path.unlink(missing_ok=True)
        if self._memories:
            for name in self._memories - set(_open_memories(psutil.process_iter())):
                with contextlib.suppress(OSError, ValueError):
                    memory = SharedMemory(name)
                    memory.close()
                    memory.unlink()  # not the file alone: the resource tracker would warn of it


def _open_memories(processes: Iterable[psutil.Process]) -> Iterator[str]:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            files = (Path(file.path) for file in process.open_files())
            yield from (file.name for file in files if file.parent == _SHARED_MEMORY)


def _bound_sockets(process: psutil.Process) -> Iterator[Path]:
    for connection in process.net_connections("unix"):
        path = Path(str(connection.laddr))
        if path.is_absolute() and path.is_socket():
            yield path


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
