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
        ConfigError: the files can't be read, or the last line is of no audit log, was changed or has another seal.

    """
    try:
        state, cut = _end_of(path, sealer) if path.exists() else (None, b"")
        if cut:
            logger.warning("records.audit_file: %s: the last line was cut, %d bytes; see its record", path, len(cut))
            os.truncate(path, path.stat().st_size - len(cut))
        return state or _end_of_closed(path, sealer), cut.decode(errors="replace")[:_MAX_SHOWN]
    except OSError as error:
        msg = f"records.audit_file: {path} can't be read: {error.strerror}"
        raise ConfigError(msg) from error


def _end_of(path: Path, sealer: Sealer) -> tuple[ChainState | None, bytes]:
    """Return the state after the last whole line of a file, None if it has none, and the bytes after it."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _MAX_TAIL_BYTES))
        tail = file.read()
    end = len(tail)
    while (end := tail.rfind(b"\n", 0, end)) >= 0:
        state = _state_after(path, sealer, tail[tail.rfind(b"\n", 0, end) + 1 : end])
        if state is not None:
            return state, tail[end + 1 :]
    if b"\n" in tail or size > len(tail):
        raise _no_log(path)
    return None, tail


def _end_of_closed(path: Path, sealer: Sealer) -> ChainState:
    """Return the state after the last line of the newest closed file; that of a new log if there is none."""
    closed = closed_files(path)
    if not closed:
        return ChainState()
    newest = closed[-1][1]
    last = deque(lines_of(newest), maxlen=1)
    state = _state_after(newest, sealer, last[0].data) if last else None
    if state is None:
        raise _no_log(newest)
    return state


def _state_after(path: Path, sealer: Sealer, data: bytes) -> ChainState | None:
    """Return the state after a line, None if it is no line of an audit log."""
    try:
        return sealer.open(data)[1]
    except NoLineError:
        return None
    except ValueError as error:
        msg = f"records.audit_file: the last line of {path} {error}; move the file away"
        raise ConfigError(msg) from error


def _no_log(path: Path) -> ConfigError:
    return ConfigError(f"records.audit_file: {path} has no audit log at its end; move it away")
