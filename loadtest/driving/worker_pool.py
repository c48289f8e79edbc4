"""The worker processes of a run on this machine: checks before they start, signals, commands to them, their answers.

A run does not wait for a worker that died: the statistics of the others count, and the report names the missing one.
"""

import multiprocessing
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, Self

from loadtest import LoadTestError
from loadtest.driving.worker import (
    Done,
    Failed,
    Go,
    Prepare,
    StatusReport,
    Stop,
    WorkerReady,
    client_settings_of,
    make_target,
    work,
)
from loadtest.processes.meter import GENERATED_TOKENS, MetricsError, read_counter
from loadtest.targets import TargetError, TargetSpec
from loadtest.traffic.scenario import Scenario

_POLL_S = 0.2
_QUIT_S = 5.0
_CONNECT_S = 5.0
_OWN_FILES = 256
"""Descriptors that a worker needs besides its sessions' connections."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CheckError(LoadTestError):
    """A run can't start; the message gives the reason and a remedy."""


class RunError(LoadTestError):
    """A run failed; the message says why."""


def check(scenario: Scenario, specs: Sequence[TargetSpec], num_workers: int) -> None:
    """Check the targets, and raise the limit of open files as far as the system allows. Raises CheckError."""
    for first, second in pairwise(sorted(spec.name for spec in specs)):
        if first == second:
            raise CheckError(f"two targets have the name {first!r}; give them others: NAME=KIND://...")
    for spec in specs:
        _check_target(spec, scenario)
        allow_files(num_files(spec, scenario, num_workers), num_workers)


def num_files(spec: TargetSpec, scenario: Scenario, num_workers: int) -> int:
    """Return the largest number of files that a worker may have open."""
    sessions = -(-(scenario.sessions + scenario.abusers.count) // num_workers)
    shared = spec.num_connections(sessions) * len(spec.hosts)
    return (min(sessions, shared) if shared else sessions) + _OWN_FILES


def allow_files(needed: int, num_workers: int) -> None:
    """Raise the limit of open files for later processes. Raises CheckError if the system does not allow it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise CheckError(
            f"each of {num_workers} workers needs {needed} open files and may have {hard}: `ulimit -n {needed}` "
            "(as root, or in the limits of the service or container), more --workers, or ?connections=64 at the target"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _check_target(spec: TargetSpec, scenario: Scenario) -> None:
    try:
        make_target(spec, client_settings_of(scenario))
    except TargetError as error:
        raise CheckError(str(error)) from error
    for host in spec.hosts:
        name, _, port = host.rpartition(":")
        try:
            socket.create_connection((name.strip("[]"), int(port)), _CONNECT_S).close()
        except OSError as error:
            raise CheckError(f"target {spec.name}: nothing answers at {host}: {error}") from error
    if spec.metrics_url:
        try:
            read_counter(spec.metrics_url, GENERATED_TOKENS)
        except MetricsError as error:
            raise CheckError(f"target {spec.name}: metrics: {error}") from error


class Interruption:
    """Records the first SIGINT or SIGTERM while its context is open; the second one ends the process at once.

    Outside the main thread it records none.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._before: dict[signal.Signals, Any] = {}

    def ask(self) -> None:
        """Ask for an orderly end, as a signal does."""
        self.is_asked = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


@contextmanager
def held_back() -> Iterator[None]:
    """Block signals, also in processes started meanwhile; those unblock them when they are ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set(_SIGNALS))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(slots=True)
class _Worker:
    number: int
    process: SpawnProcess
    pipe: Connection
    report: StatusReport | None = None
    answer: WorkerReady | Done | None = None
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """Worker processes, each of which drives its share of the sessions."""

    _workers: list[_Worker] = field(default_factory=list)

    @classmethod
    def start(cls, first: int, count: int, num_workers: int) -> Self:
        """Start `count` workers, numbered from `first`, of `num_workers` on all machines."""
        # gRPC does not survive a fork.
        context = multiprocessing.get_context("spawn")
        pool = cls()
        for number in range(first, first + count):
            pipe, far_end = context.Pipe()
            process = context.Process(target=work, args=(far_end, number, num_workers), daemon=True)
            with held_back():
                process.start()
            far_end.close()
            pool._workers.append(_Worker(number, process, pipe))
        return pool

    def send(self, message: Prepare | Go | Stop) -> None:
        """Send a command to all living workers. Prepare and Go have an answer."""
        for worker in self._alive():
            if isinstance(message, (Prepare, Go)):
                worker.answer = None
            try:
                worker.pipe.send(message)
            except OSError:
                worker.is_alive = False

    def answers(self, timeout_s: float, on_pulse: Callable[[], None]) -> dict[int, WorkerReady | Done]:
        """Wait for the answer of each living worker to the last command; return the answers by worker number.

        `on_pulse` is called several times a second.

        Raises RunError if a worker can't carry out its command, none is left, or they take too long.
        """
        deadline = time.monotonic() + timeout_s
        while waiting := [worker for worker in self._alive() if worker.answer is None]:
            if time.monotonic() > deadline:
                raise RunError(f"{len(waiting)} workers said nothing for {timeout_s:.0f} s")
            by_pipe = {worker.pipe: worker for worker in waiting}
            for pipe in wait(list(by_pipe), _POLL_S):
                assert isinstance(pipe, Connection)
                _on_message(by_pipe[pipe])
            on_pulse()
        found = {worker.number: worker.answer for worker in self._alive() if worker.answer is not None}
        if not found:
            raise RunError("all workers died")
        return found

    def reports(self) -> list[StatusReport]:
        """Return the last status report of each worker."""
        return [worker.report for worker in self._workers if worker.report is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End the workers; after an error they are killed."""
        for worker in self._workers:
            worker.pipe.close()
        deadline = time.monotonic() + (_QUIT_S if error is None else 0.0)
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.process.close()

    def _alive(self) -> Iterator[_Worker]:
        return (worker for worker in self._workers if worker.is_alive)


def _on_message(worker: _Worker) -> None:
    try:
        message: Any = worker.pipe.recv()
    except (EOFError, OSError):
        worker.is_alive = False
        return
    match message:
        case StatusReport():
            worker.report = message
        case Failed(why):
            raise RunError(why)
        case WorkerReady() | Done():
            worker.answer = message
