"""The worker processes of a run on this machine: checks before they start, signals, commands to them, their answers.

A run does not wait for a worker that died: the statistics of the others count, and the report names the missing one.
"""

import multiprocessing
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, Self

from loadtest import LoadTestError
from loadtest.driving.worker import Kind, Message, client_settings_of, make_target, work
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
        try:
            _check_target(spec, scenario)
        except (TargetError, MetricsError) as error:
            raise CheckError(f"target {spec.name}: {error}") from error
        sessions = -(-(scenario.sessions + scenario.abusers.count) // num_workers)
        shared = spec.num_connections(sessions) * len(spec.hosts)
        allow_files((min(sessions, shared) if shared else sessions) + _OWN_FILES, num_workers)


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
    make_target(spec, client_settings_of(scenario))
    for host in spec.hosts:
        name, _, port = host.rpartition(":")
        try:
            socket.create_connection((name.strip("[]"), int(port)), _CONNECT_S).close()
        except OSError as error:
            raise TargetError(f"nothing answers at {host}: {error}") from error
    if spec.metrics_url:
        read_counter(spec.metrics_url, GENERATED_TOKENS)


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

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


@dataclass(slots=True)
class _Worker:
    number: int
    process: SpawnProcess
    pipe: Connection
    report: tuple[int, ...] = (0,) * 5
    answer: Message | None = None
    is_alive: bool = True

    def read(self) -> None:
        """Read a message. Raises RunError if the worker can't carry out its command."""
        try:
            kind, payload = self.pipe.recv()
        except (EOFError, OSError):
            self.is_alive = False
            return
        if kind is Kind.FAILED:
            raise RunError(payload)
        if kind is Kind.REPORT:
            self.report = payload
        else:
            self.answer = (kind, payload)


class WorkerPool:
    """Worker processes, each of which drives its share of the sessions."""

    def __init__(self, first: int, count: int, num_workers: int) -> None:
        """Start `count` workers, numbered from `first`, of `num_workers` on all machines."""
        self._workers: list[_Worker] = []
        # gRPC does not survive a fork.
        context = multiprocessing.get_context("spawn")
        for number in range(first, first + count):
            pipe, far_end = context.Pipe()
            process = context.Process(target=work, args=(far_end, number, num_workers), daemon=True)
            # Signals are blocked, also in the new process, which unblocks them when it is ready.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, set(_SIGNALS))
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            far_end.close()
            self._workers.append(_Worker(number, process, pipe))

    def send(self, kind: Kind, payload: object = None) -> None:
        """Send a command to all living workers. PREPARE and GO have an answer."""
        for worker in self._workers:
            if kind is not Kind.STOP:
                worker.answer = None
            try:
                worker.pipe.send((kind, payload))
            except OSError:
                worker.is_alive = False

    def answers(self, timeout_s: float, on_pulse: Callable[[], None]) -> list[Message]:
        """Wait for the answers of the living workers to the last command. `on_pulse` is called several times a second.

        Raises RunError if a worker can't carry out its command, none is left, or they take too long.
        """
        deadline = time.monotonic() + timeout_s
        while waiting := {each.pipe: each for each in self._workers if each.is_alive and each.answer is None}:
            if time.monotonic() > deadline:
                raise RunError(f"{len(waiting)} workers said nothing for {timeout_s:.0f} s")
            for pipe in wait(list(waiting), _POLL_S):
                waiting[pipe].read()  # type: ignore[index]
            on_pulse()
        found = [each.answer for each in self._workers if each.is_alive and each.answer is not None]
        if not found:
            raise RunError("all workers died")
        return found

    def reports(self) -> list[tuple[int, ...]]:
        """Return the last report of each worker."""
        return [each.report for each in self._workers]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """End the workers; after an error they are killed."""
        for worker in self._workers:
            worker.pipe.close()
        deadline = time.monotonic() + (_QUIT_S if error is None else 0.0)
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()
            worker.process.close()
