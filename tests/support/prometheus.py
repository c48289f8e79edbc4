"""A real Prometheus on loopback that scrapes servers of a test every second, and answers queries.

Everything here waits without an event loop; use it before and between what a test awaits.
"""

import json
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.support.kustomize import require_programs
from tests.support.redis_servers import wait_until

START_TIMEOUT_S = 30.0
QUERY_TIMEOUT_S = 20.0
_READY = "Server is ready to receive web requests"


def require_prometheus() -> None:
    """Skip the test on a machine without Prometheus, and fail it if CI is set."""
    require_programs(("prometheus", "promtool"), "prometheus")


@dataclass(frozen=True)
class Target:
    """A metrics page to scrape."""

    address: str
    """HOST:PORT."""
    job: str = "completion-server"
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that Prometheus adds to all of its series."""


@dataclass(frozen=True)
class Series:
    """A series of the answer to a query, with its value now."""

    labels: Mapping[str, str]
    value: float


@dataclass
class Prometheus:
    """A Prometheus that runs."""

    url: str
    """The address of its HTTP interface."""
    num_targets: int

    def query(self, expression: str) -> list[Series]:
        """Return what an expression has now, [] without data.

        Raises AssertionError with Prometheus's message if it refuses the expression.
        """
        return [Series(each["metric"], float(each["value"][1])) for each in self._ask("query", query=expression)]

    def query_range(
        self, expression: str, seconds: float, step_s: float = 1.0
    ) -> list[tuple[Mapping[str, str], list[float]]]:
        """Return the labels and the values of the last `seconds` of each series."""
        now = time.time()
        found = self._ask("query_range", query=expression, start=now - seconds, end=now, step=step_s)
        return [(each["metric"], [float(value) for _, value in each["values"]]) for each in found]

    def wait_for(self, expression: str, timeout_s: float = QUERY_TIMEOUT_S) -> list[Series]:
        """Return what an expression has as soon as it has anything; fail after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.query(expression)):
            assert time.monotonic() < deadline, f"no data within {timeout_s} s: {expression}"
            time.sleep(0.1)
        return found

    def wait_scraped(self, num_scrapes: int = 2, timeout_s: float = QUERY_TIMEOUT_S) -> None:
        """Wait until each target was scraped so often since its first success. A rate needs two scrapes."""
        self.wait_for(f"count(sum_over_time(up[10m]) >= {num_scrapes}) == {self.num_targets}", timeout_s)

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the data of an answer of its HTTP interface."""
        url = f"{self.url}/api/v1/{path}?{urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=QUERY_TIMEOUT_S) as reply:
                return json.load(reply)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def _ask(self, path: str, **parameters: Any) -> list[dict[str, Any]]:
        data = self.get(path, **parameters)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        result: list[dict[str, Any]] = data["result"]
        return result


def _config(targets: Sequence[Target], rules: Sequence[Path]) -> dict[str, Any]:
    jobs: dict[str, list[dict[str, Any]]] = {}
    for target in targets:
        found = {"targets": [target.address], "labels": dict(target.labels)}
        jobs.setdefault(target.job, []).append(found)
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path.resolve()) for path in rules],
        "scrape_configs": [{"job_name": job, "static_configs": found} for job, found in jobs.items()],
    }


@contextmanager
def running_prometheus(*targets: Target, rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes targets and evaluates rule files, and end it by its process id."""
    require_prometheus()
    with tempfile.TemporaryDirectory(prefix="prometheus-") as folder:
        config, log = Path(folder, "prometheus.yml"), Path(folder, "log")
        config.write_text(yaml.safe_dump(_config(targets, rules)))
        command = [
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
            "--web.listen-address=127.0.0.1:0", "--enable-feature=exemplar-storage",
        ]  # fmt: skip
        with log.open("wb") as written:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=written, stderr=written)
        try:
            wait_until(lambda: process.poll() is not None or _READY in log.read_text(), START_TIMEOUT_S)
            assert process.poll() is None, f"prometheus does not start: {log.read_text()}"
            (address,) = re.findall(r'msg="Listening on".* address=(\S+)', log.read_text())
            yield Prometheus(f"http://{address}", len(targets))
        finally:
            process.kill()
            process.wait(START_TIMEOUT_S)
