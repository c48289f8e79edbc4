"""The pool of worker processes of a run on this machine: starts them, sends them commands, collects their answers.

A run does not wait for a worker that died: the statistics of the others count, and the report names the missing one.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

from loadtest.driving.interruption import held_back
from loadtest.driving.worker import Done, Failed, Go, Prepare, Quit, StatusReport, Stop, WorkerReady, work

_POLL_S = 0.2
_QUIT_S = 5.0


class RunError(Exception):
    """A run failed; the message says why."""


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

    def send(self, message: Prepare | Go | Stop | Quit) -> None:
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

        Raises:
            RunError: a worker can't carry out its command, none is left, or they take too long.

        """
        deadline = time.monotonic() + timeout_s
        while waiting := [worker for worker in self._alive() if worker.answer is None]:
            if time.monotonic() > deadline:
                msg = f"{len(waiting)} workers said nothing for {timeout_s:.0f} s"
                raise RunError(msg)
            by_pipe = {worker.pipe: worker for worker in waiting}
            for pipe in wait(list(by_pipe), _POLL_S):
                assert isinstance(pipe, Connection)
                _on_message(by_pipe[pipe])
            on_pulse()
        found = {worker.number: worker.answer for worker in self._alive() if worker.answer is not None}
        if not found:
            msg = "all workers died"
            raise RunError(msg)
        return found

    def reports(self) -> list[StatusReport]:
        """Return the last status report of each worker."""
        return [worker.report for worker in self._workers if worker.report is not None]

    @property
    def num_alive(self) -> int:
        """Workers that have not died."""
        return sum(1 for _worker in self._alive())

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers; after an error they are killed."""
        if error is None:
            self.send(Quit())
        deadline = time.monotonic() + (_QUIT_S if error is None else 0.0)
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.process.close()
            worker.pipe.close()

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
