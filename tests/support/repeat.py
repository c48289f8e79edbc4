"""Runs tests again and again, and lists what failed: `python -m tests.support.repeat N COMMAND`."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

LOGS = Path("build") / "test-repeat"
ENDS_WITHIN_S = 30.0
"""How long what was started may take to end after a Ctrl-C, before it is killed."""
_COUNT = re.compile(r"(\d+) (passed|failed|errors?)\b")
_SUMMARY = re.compile(r"^=*\s*(?:\d+ [a-z]+,? )+.*\bin [\d.]+s", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """The result of one run."""

    num_passed: int
    num_failed: int
    seconds: float
    failed: tuple[str, ...]

    @classmethod
    def of_output(cls, output: str, status: int, seconds: float) -> "Run":
        """Read what pytest printed; a status without a failed test counts as one failure."""
        counts = {"passed": 0, "failed": 0, "error": 0}
        for summary in _SUMMARY.findall(output):
            for number, kind in _COUNT.findall(summary):
                counts[kind.removesuffix("s")] += int(number)
        num_failed, failed = counts["failed"] + counts["error"], tuple(dict.fromkeys(_FAILED.findall(output)))
        if status and not num_failed:
            num_failed, failed = 1, (f"the command ended with status {status}",)
        return cls(counts["passed"], num_failed, seconds, failed)

    def row(self, number: int) -> str:
        """Return a line of the table."""
        return f"{number:3}  {self.num_passed:6}  {self.num_failed:6}  {self.seconds:7.0f}  {', '.join(self.failed)}"


def run_once(command: Sequence[str], log: Path) -> Run:
    """Run the command, with its output in a file. An interrupt ends it and all that it started."""
    began_s = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        status = process.wait()
    except BaseException:
        stop(process.pid)
        raise
    return Run.of_output(log.read_text(errors="replace"), status, time.monotonic() - began_s)


def stop(pid: int) -> None:
    """Interrupt a process group, and kill what is left of it and of its descendants after a time."""
    started = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGINT)
    _gone, left = psutil.wait_procs(started, timeout=ENDS_WITHIN_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=ENDS_WITHIN_S)


def main() -> int:
    """Run the command N times and print a table; return 1 if a test failed, 130 after an interrupt."""
    num_runs, command = int(sys.argv[1]), sys.argv[2:]
    LOGS.mkdir(parents=True, exist_ok=True)
    print("run  passed  failed  seconds  failed tests", flush=True)  # noqa: T201
    num_failed = 0
    try:
        for number in range(1, num_runs + 1):
            run = run_once(command, LOGS / f"run-{number}.log")
            num_failed += run.num_failed
            print(run.row(number), flush=True)  # noqa: T201
    except KeyboardInterrupt:
        return 130
    print(f"{num_failed} failures in {num_runs} runs; the output of each is in {LOGS}")  # noqa: T201
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
