"""Writes records in a thread of its own. The event loop only puts them into a bounded queue, and never waits.

What can't be written, because the disk is full or too many records wait, is added up. The sums are records, too, which
are written when there is room again.
"""

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from completion_server.core.events import Event
from completion_server.records.files import RotatingFile

logger = logging.getLogger(__name__)

MAX_QUEUED = 50_000
"""Records that wait for the thread; a server that ends 1,000 requests a second queues 250 of them at a time."""
_MAX_BATCH = 1000
_INTERVAL_S = 0.25
_CLOSE_S = 5.0
_LOG_EVERY_S = 600.0

Record = dict[str, Any]
"""The values of a line."""


class RecordWriter(ABC):
    """The queue, the thread and the file of the records of one kind."""

    kind: str
    """Names the records in logs and metrics."""

    def __init__(self, file: RotatingFile, *, max_queued: int = MAX_QUEUED, interval_s: float = _INTERVAL_S) -> None:
        """Write to `file` once started, every `interval_s`."""
        self.num_lost = 0
        """Records without a line of their own."""
        self.is_failing = False
        self._file = file
        self._max_queued = max_queued
        self._interval_s = interval_s
        self._queue: deque[Record] = deque()
        self._lock = threading.Lock()
        """Of what is added up."""
        self._next_log_at = -math.inf
        self._is_logged = False
        self._closing = threading.Event()
        # A disk that hangs must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name=f"{self.kind}-records", daemon=True)

    @abstractmethod
    def handle(self, event: Event, now_s: float) -> None:
        """Put the record of an event that happened at a Unix time into the queue, if it has one."""

    @abstractmethod
    def _add_up(self, record: Record) -> int:
        """Add a record, which may be a sum, to the sums; return how many it stands for. The lock is held."""

    @abstractmethod
    def _take_sums(self) -> Sequence[Record]:
        """Return the sums, and begin new ones. The lock is held."""

    @abstractmethod
    def _append(self, records: Sequence[Record]) -> None:
        """Append the lines of records to the file, all or none. Raises OSError."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put_nowait(self, record: Record) -> None:
        """Have a record written soon. If too many wait, it is only added up."""
        if len(self._queue) < self._max_queued:
            self._queue.append(record)
        else:
            self._lose(record)

    def close(self) -> None:
        """Write what waits, and close the file. Blocks for some seconds at most, on a disk that hangs."""
        self._closing.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.error("the last %s records were not written: the disk does not answer", self.kind)

    def write(self, records: Sequence[Record]) -> None:
        """Write the sums, then these records, or add them up. For the thread, at intervals also without records."""
        with self._lock:
            sums = self._take_sums()
        if not self._try_append(sums):
            with self._lock:
                for each in sums:
                    self._add_up(each)
        elif self._try_append(records):
            return
        for each in records:
            self._lose(each)

    def close_file(self) -> None:
        """Flush and close the file. For the thread."""
        try:
            self._file.close()
        except OSError as error:
            self._failed(error)

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._write_all()
        self._write_all()
        self.close_file()

    def _write_all(self) -> None:
        """Write what waits; at least try once, for the sake of what could not be written before."""
        try:
            self.write(self._take())
            while self._queue:
                self.write(self._take())
        except Exception:  # a bug; the next records may do
            logger.exception("%s records could not be written", self.kind)

    def _take(self) -> list[Record]:
        """Take a batch. Only the thread takes from the queue."""
        return [self._queue.popleft() for _ in range(min(_MAX_BATCH, len(self._queue)))]

    def _lose(self, record: Record) -> None:
        with self._lock:
            self.num_lost += self._add_up(record)

    def _try_append(self, records: Sequence[Record]) -> bool:
        if not records:
            return True
        try:
            self._append(records)
        except OSError as error:
            self._failed(error)
            return False
        if self.is_failing and self._is_logged:
            self._is_logged = False
            logger.warning("records.%s_file: %s can be written again", self.kind, self._file.path)
        self.is_failing = False
        return True

    def _failed(self, error: OSError) -> None:
        """Note a failure; log it once. On a disk that is nearly full, short lines go on for a while."""
        now = time.monotonic()
        if not self.is_failing and now >= self._next_log_at:
            self._next_log_at, self._is_logged = now + _LOG_EVERY_S, True
            logger.error(
                "records.%s_file: %s can't be written: %s; the server goes on, and counts what it can't write",
                self.kind, self._file.path, error.strerror or "failed",
            )  # fmt: skip
        self.is_failing = True


def time_of(unix_s: float) -> str:
    """Return the time of a record."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
