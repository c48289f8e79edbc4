"""Child processes with a log file each: starts them, waits for them, and stops them by their own process id."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

import psutil

_POLL_S = 0.05
_STOP_S = 10.0
_LOG_LINES = 25


FIRST_START_S = 900.0
"""Time limit for the start of a server or an engine. The first one compiles the model."""


class StartError(Exception):
    """A process did not start; the message contains the end of its log."""


class Child:
    """A process in its own process group. Standard error, and unless piped standard output, go to a log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        is_piped: bool = False,
    ) -> None:
        """Start the process. With `is_piped` the caller writes its standard input and reads its standard output."""
        self.name = name
        self._log_file, self._log_name = tempfile.mkstemp(prefix=f"{name}-", suffix=".log")
        self._unread = b""
        self._is_paused = False
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE if is_piped else subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_piped else self._log_file,
            stderr=self._log_file,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything that it has written to its log file so far."""
        return Path(self._log_name).read_text(encoding="utf-8", errors="replace")

    def read_json(self, timeout_s: float) -> dict[str, Any]:
        """Return the next line of output that is a JSON object. Raises StartError if the process or the time ends."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self._read_line(deadline - time.monotonic())
            if line is None:
                self._give_up(f"said nothing for {timeout_s:.0f} s")
            if not line:
                self._process.wait(_STOP_S)
                self._check_running()
            if line.startswith(b"{"):
                answer: dict[str, Any] = json.loads(line)
                return answer

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Write a JSON line and return the JSON line of the answer. Raises StartError as `read_json`."""
        source = self._process.stdin
        assert source is not None
        source.write(json.dumps(question).encode() + b"\n")
        source.flush()
        return self.read_json(timeout_s)

    def _read_line(self, timeout_s: float) -> bytes | None:
        """Return a line of output, b"" at the end of the output, None when the time is up."""
        output = self._process.stdout
        assert output is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(output.fileno(), 1 << 16)
            if not chunk:
                return b""
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line + b"\n"

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait for a condition. Raises StartError if the process ended, or the time is up."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self._check_running()
            if time.monotonic() > deadline:
                self._give_up(f"was not ready after {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def pause(self) -> None:
        """Suspend all processes of its session (SIGSTOP), those in other process groups too.

        The first process goes first, so that it does not watch the others while they are suspended.
        """
        self._is_paused = True
        suspended: set[int] = set()
        while found := [pid for pid in self._session_pids() if pid not in suspended]:  # one may just have started
            _signal_each(found, signal.SIGSTOP)
            suspended.update(found)

    def resume(self) -> None:
        """Continue after `pause`, the first process last."""
        self._is_paused = False
        _signal_each(self._session_pids()[::-1], signal.SIGCONT)

    def terminate(self) -> None:
        """Ask the first process to end (SIGTERM), and go on without waiting."""
        self._process.terminate()

    def stop(self) -> None:
        """End the process group: SIGTERM first, then SIGKILL."""
        if self._is_paused:
            self.resume()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                break
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._log_file)
        Path(self._log_name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _session_pids(self) -> list[int]:
        """Return the processes of its session in the order of their ids, the first process first."""
        found = [pid for pid in psutil.pids() if pid != self.pid and _session_of(pid) == self.pid]
        return [self.pid, *found]

    def _check_running(self) -> None:
        code = self._process.poll()
        if code is not None:
            self._give_up(f"ended with status {code}")

    def _give_up(self, why: str) -> NoReturn:
        lines = self.log.splitlines()
        tail = "\n".join(f"  | {line}" for line in lines[-_LOG_LINES:])
        raise StartError(f"{self.name} {why}. The end of its log:\n{tail}")


def _session_of(pid: int) -> int | None:
    """Return the session of a process; None if the process has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _signal_each(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_http_ok(url: str) -> bool:
    """Return whether a URL answers with 200. Proxies are not used."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004
    except (urllib.error.URLError, OSError):
        return False


def end_on_sigterm() -> None:
    """Turn SIGTERM into an ordinary exit, so that child processes are stopped."""

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(143)

    signal.signal(signal.SIGTERM, leave)
