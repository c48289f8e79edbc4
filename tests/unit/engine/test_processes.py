"""What killed processes leave behind."""

import multiprocessing
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil

from completion_server.engine.processes import Remnants, kill_and_wait, runs

WITHIN_S = 60.0
"""Until the child has started; on a busy machine."""


def hold(path: str, ready: Connection) -> None:
    """Listen on a socket, and hold shared memory, until killed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    memory = SharedMemory(create=True, size=16)
    ready.send(memory.name)
    time.sleep(1_000)


def test_sockets_and_shared_memory_of_killed_processes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    ready, sender = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=hold, args=(str(path), sender), daemon=True)
    child.start()
    assert ready.poll(WITHIN_S), f"the child was not ready within {WITHIN_S} s"
    name = ready.recv()
    processes = [psutil.Process(child.pid)]
    remnants = Remnants(processes)
    kill_and_wait(processes, WITHIN_S)
    assert path.exists()
    assert Path("/dev/shm", name).exists()
    remnants.remove()
    assert not path.exists()
    assert not Path("/dev/shm", name).exists()
    child.join(WITHIN_S)
    remnants.remove()  # of what is gone already


OUTLIVED = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(1_000,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # the exit of this thread alone
"""


def test_a_zombie_runs_until_its_last_thread_has_ended() -> None:
    """The first thread of a killed process may end before the others, which hold its files open until then."""
    with subprocess.Popen([sys.executable, "-c", OUTLIVED]) as child:
        process = psutil.Process(child.pid)
        until = time.monotonic() + WITHIN_S
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until, f"the first thread did not end within {WITHIN_S} s"
            time.sleep(0.01)
        assert runs(process)
        kill_and_wait([process], WITHIN_S)
        assert process.status() == psutil.STATUS_ZOMBIE
        assert not runs(process)


def borrow(_listener: socket.socket, name: str, ready: Connection) -> None:
    """Hold a socket and shared memory that belong to the parent, until killed."""
    memory = SharedMemory(name)
    ready.send(memory.name)
    time.sleep(1_000)


def test_what_another_process_still_has_open_is_kept(tmp_path: Path) -> None:
    path, memory = tmp_path / "socket", SharedMemory(create=True, size=16)
    ready, sender = multiprocessing.Pipe()
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            spawn = multiprocessing.get_context("spawn")
            child = spawn.Process(target=borrow, args=(listener, memory.name, sender), daemon=True)
            child.start()
            assert ready.poll(WITHIN_S), f"the child was not ready within {WITHIN_S} s"
            processes = [psutil.Process(child.pid)]
            remnants = Remnants(processes)
            kill_and_wait(processes, WITHIN_S)
            remnants.remove()
            assert path.exists()
            assert Path("/dev/shm", memory.name).exists()
            child.join(WITHIN_S)
    finally:
        memory.close()
        memory.unlink()
