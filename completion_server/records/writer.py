"""Writes records in a thread of its own. The event loop only puts them into a bounded queue, and never waits."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

MAX_QUEUED = 50_000
"""Records that wait for the thread; a server that ends 1,000 requests a second queues 250 of them at a time."""
_MAX_BATCH = 1000
_INTERVAL_S = 0.25
_CLOSE_S = 5.0
_LOG_EVERY_S = 600.0

Record = TypeVar("Record")
Taken = TypeVar("Taken", contravariant=True)


class WriteStatus:
    """Whether records of one kind can be written. Read by other threads."""

    def __init__(self, kind: str, path: str) -> None:
        """Begin well. `kind` and `path` name the file in logs."""
        self.kind = kind
        self.num_lost = 0
        """Records without a line of their own; they are counted in a line for many."""
        self.is_failing = False
        self._path = path
        self._next_log_at = -math.inf
        self._is_logged = False

    def failed(self, error: OSError) -> None:
        """Note that a write has failed; says so once. On a disk that is nearly full, short lines go on for a while."""
        now = time.monotonic()
        if not self.is_failing and now >= self._next_log_at:
            self._next_log_at, self._is_logged = now + _LOG_EVERY_S, True
            logger.error(
                "records.%s_file: %s can't be written: %s; the server goes on, and counts what it can't write",
                self.kind, self._path, error.strerror or "failed",
            )  # fmt: skip
        self.is_failing = True

    def worked(self) -> None:
        """Note that a write has succeeded; says so once after a failure."""
        if self.is_failing and self._is_logged:
            self._is_logged = False
            logger.warning("records.%s_file: %s can be written again", self.kind, self._path)
        self.is_failing = False


class Sink(Protocol[Taken]):
    """Where records go."""

    status: WriteStatus

    def write(self, records: Sequence[Taken], /) -> None:
        """Write records, or count those that can't be written. Called in the thread, at intervals also without any."""
        ...

    def count_only(self, record: Taken, /) -> None:
        """Count a record that is not written, because too many wait. Called in any thread."""
        ...

    def close(self) -> None:
        """Flush and close the file."""
        ...


class RecordWriter(Generic[Record]):
    """The queue and the thread of one file."""

    def __init__(self, sink: Sink[Record], max_queued: int = MAX_QUEUED, interval_s: float = _INTERVAL_S) -> None:
        """Write to `sink` once started, every `interval_s`."""
        self._sink = sink
        self._max_queued = max_queued
        self._interval_s = interval_s
        self._queue: deque[Record] = deque()
        self._closing = threading.Event()
        # A disk that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name=f"{sink.status.kind}-records", daemon=True)

    @property
    def status(self) -> WriteStatus:
        """Whether the records can be written."""
        return self._sink.status

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put_nowait(self, record: Record) -> None:
        """Have a record written soon. If too many wait, it is only counted."""
        if len(self._queue) < self._max_queued:
            self._queue.append(record)
        else:
            self._sink.count_only(record)

    def close(self) -> None:
        """Write what waits, and close the file. Blocks for some seconds at most, on a disk that hangs."""
        self._closing.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.error("the last %s records were not written: the disk does not answer", self.status.kind)

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._write_all()
        self._write_all()
        try:
            self._sink.close()
        except OSError as error:
            self.status.failed(error)

    def _write_all(self) -> None:
        """Write what waits; at least try once, for the sake of what could not be written before."""
        try:
            self._sink.write(self._take())
            while self._queue:
                self._sink.write(self._take())
        except Exception:  # a bug; the next records may do
            logger.exception("%s records could not be written", self.status.kind)

    def _take(self) -> list[Record]:
        """Take a batch. Only this thread takes from the queue."""
        return [self._queue.popleft() for _ in range(min(_MAX_BATCH, len(self._queue)))]
