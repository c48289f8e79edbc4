"""Writes records as JSON lines to a file that rotates by size, with logging's handlers.

The event loop only puts a record into a bounded queue. A thread writes it. A record that can't be written, because the
disk is full or too many records wait, is dropped and counted.
"""

import contextlib
import json
import logging
import os
import queue
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

MAX_QUEUED = 50_000
"""Records that may wait for the thread: those of 50 s at 1,000 requests a second."""
_MODE = 0o640

Record = dict[str, Any]
"""The values of a line."""
Put = Callable[[Record], None]
"""Has a record written soon; never waits."""


class RecordLog:
    """One file of records, with its queue and its thread."""

    def __init__(self, path: Path, max_bytes: int, max_files: int, on_lost: Callable[[], None]) -> None:
        """Open `path` with the first record. Call `on_lost`, from any thread, for each record that is dropped."""
        self._queue = _BoundedQueue(on_lost)
        self._file = _RecordFile(path, max_bytes, max_files, on_lost)
        self._listener = QueueListener(self._queue.queue, self._file)

    def start(self) -> None:
        """Start the thread."""
        self._listener.start()

    def put_nowait(self, record: Record) -> None:
        """Have a record written soon."""
        self._queue.handle(logging.makeLogRecord({"msg": json.dumps(record, separators=(",", ":"))}))

    def close(self) -> None:
        """Write what waits, and close the file. Waits for the disk: call it outside of the event loop."""
        self._listener.stop()
        with contextlib.suppress(OSError):  # a full disk
            self._file.close()


class _BoundedQueue(QueueHandler):
    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._waiting: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
        super().__init__(self._waiting)
        self._on_lost = on_lost

    def enqueue(self, record: logging.LogRecord) -> None:
        # The queue itself has no bound, so that the listener can always be stopped.
        if self._waiting.qsize() >= MAX_QUEUED:
            raise queue.Full
        super().enqueue(record)

    def handleError(self, record: logging.LogRecord) -> None:
        del record
        self._on_lost()


class _RecordFile(RotatingFileHandler):
    """Logs when the file can't be written, and when it can again."""

    def __init__(self, path: Path, max_bytes: int, max_files: int, on_lost: Callable[[], None]) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=max_files, encoding="ascii", delay=True)
        self._on_lost = on_lost
        self._num_lost = 0
        self._is_failing = False

    def _open(self) -> TextIOWrapper:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags, _MODE)

        return open(self.baseFilename, "a", encoding=self.encoding, opener=opener)

    def emit(self, record: logging.LogRecord) -> None:
        num_lost = self._num_lost
        super().emit(record)
        if self._is_failing and num_lost == self._num_lost:
            self._is_failing = False
            logger.warning("%s can be written again", self.baseFilename)

    def handleError(self, record: logging.LogRecord) -> None:
        del record
        self._num_lost += 1
        self._on_lost()
        if not self._is_failing:
            self._is_failing = True
            message = "%s can't be written: %s; the server goes on, and counts the records that it drops"
            logger.error(message, self.baseFilename, sys.exception())


def time_of(unix_s: float) -> str:
    """Return the time of a record."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")
