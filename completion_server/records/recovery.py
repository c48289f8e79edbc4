"""Finds where an audit log ends, so that its chain goes on after a restart or a crash."""

import logging
import os
from collections import deque
from pathlib import Path

from completion_server.core.errors import ConfigError
from completion_server.records.chain import ChainState, NoLineError, Sealer
from completion_server.records.files import closed_files
from completion_server.records.reading import lines_of

logger = logging.getLogger(__name__)

_MAX_TAIL_BYTES = 1024 * 1024
_MAX_SHOWN = 4096


def recover(path: Path, sealer: Sealer) -> tuple[ChainState, str]:
    """Return the end of the log, and the cut line at its end, "" if there is none. That is taken from the file.

    Raises:
        ConfigError: the last line was changed, or has another seal.
        OSError: the files can't be read.

    """
    state, cut = _end_of(path, sealer) if path.exists() else (None, b"")
    if cut:
        logger.warning("records.audit_file: %s: the last line was cut, %d bytes; see its record", path, len(cut))
        os.truncate(path, path.stat().st_size - len(cut))
    if state is None:
        state = _end_of_closed(path, sealer)
    return state, cut.decode(errors="replace")[:_MAX_SHOWN]


def _end_of(path: Path, sealer: Sealer) -> tuple[ChainState | None, bytes]:
    """Return the state after the last whole line of a file, None if it has none, and the bytes after it."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_TAIL_BYTES))
        tail = file.read()
    end = len(tail)
    while (line_end := tail.rfind(b"\n", 0, end)) >= 0:
        begin = tail.rfind(b"\n", 0, line_end) + 1
        try:
            return _opened(path, sealer, tail[begin:line_end]), tail[line_end + 1 :]
        except NoLineError:
            end = begin
        if begin == 0:
            break
    if b"\n" in tail or size > len(tail):
        msg = f"records.audit_file: {path} has no audit log at its end; move it away"
        raise ConfigError(msg)
    return None, tail


def _end_of_closed(path: Path, sealer: Sealer) -> ChainState:
    """Return the state after the last line of the newest closed file; that of a new log if there is none."""
    closed = closed_files(path)
    if not closed:
        return ChainState()
    newest = closed[-1][1]
    last = deque(lines_of(newest), maxlen=1)
    try:
        return _opened(newest, sealer, last[0].data if last else b"")
    except NoLineError as error:
        msg = f"records.audit_file: {newest} has no audit log at its end; move it away"
        raise ConfigError(msg) from error


def _opened(path: Path, sealer: Sealer, data: bytes) -> ChainState:
    try:
        return sealer.open(data)[1]
    except NoLineError:
        raise
    except ValueError as error:
        msg = f"records.audit_file: the last line of {path} {error}; move the file away"
        raise ConfigError(msg) from error
