"""The processes that measure, each on an empty GPU, and the memory that they take."""

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import psutil

ROOT = Path(__file__).resolve().parents[2]


def run(command: Sequence[str]) -> str:
    """Run a process with its messages shown, and return its standard output; ClickException when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command[1:4])} ended with {done.returncode}; why is above")
    return done.stdout


def device_name() -> str:
    """The GPU's name, or "cpu"."""
    return ask_driver("name") or "cpu"


def ask_driver(field: str) -> str:
    """The driver's answer for the first GPU, "" without one; asking torch would take memory of the GPU."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def peak_memory(every_s: float = 0.5) -> Iterator[Callable[[], float]]:
    """Watch memory until the block ends; yields a function that returns the peak of `used_mib` so far."""
    peak, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            peak[0] = max(peak[0], used_mib())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: peak[0]
    finally:
        ended.set()
        thread.join()


def used_mib() -> float:
    """MiB in use now: of the GPU by the driver's count, without a GPU resident in this process's children."""
    answer = ask_driver("memory.used")
    if answer:
        return float(answer)
    used = 0
    for child in psutil.Process().children(recursive=True):
        try:
            used += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return used / 2**20
