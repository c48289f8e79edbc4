"""The benchmark of several replicas, in small: real server processes, a real Redis."""

import json
import subprocess
import sys

import pytest

from tests.support.models import ROOT
from tests.support.redis_servers import require_redis


@pytest.mark.full
@pytest.mark.timeout(120)
def test_the_parts_supersede_and_outage_report_their_figures() -> None:
    require_redis()
    command = [sys.executable, "-m", "loadtest.bench.replicas", "--part", "supersede", "--part", "outage"]
    done = subprocess.run(
        [*command, "--quick", "--json"],
        capture_output=True, text=True, check=False, timeout=110, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["supersede_p50_ms"] <= found["supersede_p99_ms"]
    assert found["supersede_missed"] == 0
    assert found["redis_down_requests"] > 0
    assert "rate_limited" not in done.stderr.lower()
