"""The attack benchmark, in small: a real server, real attackers and honest users."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.serial, pytest.mark.full]

PHASES = ("calm", "attack", "after")
ATTACKS = ("idle_sessions", "many_names")


@pytest.mark.timeout(180)
def test_attacks_are_measured_in_three_phases() -> None:
    chosen = [argument for attack in ATTACKS for argument in ("--attack", attack)]
    command = [sys.executable, "-m", "loadtest.bench.attacks", "--json", *chosen]
    done = subprocess.run([*command, "--quick"], capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    attacks = json.loads(done.stdout.splitlines()[-1])["attacks"]
    assert [each["attack"] for each in attacks] == [*ATTACKS]
    for found in attacks:
        assert sum(found["attacker"].values()) >= 1, found["attack"]
        for phase in PHASES:
            assert 0 <= found[f"{phase}_share_in_time"] <= 1
            assert found[f"{phase}_peak_rss_mib"] > 0
        assert found["calm_share_in_time"] > 0.5
