"""The benchmark of the front end, in small: the real server, the real load tester and the bare server."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.serial

FIGURES = {
    "sessions", "requests_per_s", "errors", "front_end_ttft_p99_ms", "server_kib_per_session",
    "rate_ratio_to_bare_grpc", "generator_lag_p99_ms", "server_cpu_s_per_1000_requests", "reconnect_p99_ms",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.timeout(180)
def test_editors_are_served_and_reconnect_after_losing_their_streams() -> None:
    command = [sys.executable, "-m", "loadtest.bench.sessions", "--sessions", "40", "--requests-per-s", "40"]
    done = subprocess.run(
        [*command, "--seconds", "5", "--storm", "--set", "shed.lag_ms=0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() >= FIGURES
    assert found["sessions"] == 40
    assert found["requests_per_s"] > 10
    assert found["reconnects"] == 40
    assert found["sessions_lost"] == 0
    assert found["rate_ratio_to_bare_grpc"] > 0
    assert found["messages_per_request"] > 1
