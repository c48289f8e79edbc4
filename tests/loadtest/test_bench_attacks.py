"""The attack benchmark, in small: a real server, real attackers and honest users."""

import json
import subprocess
import sys

import pytest

from loadtest.bench.attacks.kinds import ATTACKS

pytestmark = pytest.mark.serial

PHASES = ("calm", "attack", "after")


@pytest.mark.full
@pytest.mark.timeout(180)
def test_an_attack_is_measured_in_three_phases() -> None:
    command = [sys.executable, "-m", "loadtest.bench.attacks", "--attack", "idle_sessions", "--json"]
    durations = ["--calm-s", "0.5", "--attack-s", "1", "--after-s", "0.5"]
    done = subprocess.run([*command, *durations], capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout.splitlines()[-1])["attacks"]
    assert found["attack"] == "idle_sessions"
    assert found["attacker"]["connections"] >= 1
    for phase in PHASES:
        assert 0 <= found[f"{phase}_share_in_time"] <= 1
        assert found[f"{phase}_peak_rss_mib"] > 0


def test_attacks_are_listed_under_their_own_names() -> None:
    assert all(name == attack.name and attack.about for name, attack in ATTACKS.items())
