"""Benchmarks in small, as commands: real servers, most with scripted engines, and the keys of the last line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import ROOT
from tests.support.redis_servers import require_redis

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SCRIPTED = ("--set", "engine.kind=scripted")
DRAFTING = (*SCRIPTED, "--set", "engine.draft_model=draft_model/embedded", "--set", "engine.scripted_acceptance=0.6")
ATTACKS = ("idle_sessions", "many_names")


def run(module: str, *options: str) -> dict[str, Any]:
    """Return the last line of a benchmark."""
    command = [sys.executable, "-m", f"loadtest.bench.{module}", "--quick", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=290)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.serial
@pytest.mark.parametrize(
    ("module", "options", "positive"),
    [
        (
            "speculation",
            ("--changes", "3", *DRAFTING),
            (
                "speedup_batch_1", "speedup_over_no_draft_batch_1", "off_over_no_draft_batch_4",
                "tuned_over_best_fixed",
                "tuned_over_off", "tuned_over_no_draft", "live_change_ms_p99", "live_change_call_ms_p50",
            ),
        ),
        (
            "scheduler",
            ("--no-vllm-serve", "--load", "2", *SCRIPTED),
            ("capacity_per_s", "wasted_token_share_2x", "seen_ratio_2x_to_plain"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_benchmark_ends_with_its_figures(module: str, options: tuple[str, ...], positive: tuple[str, ...]) -> None:
    found = run(module, *options)
    assert min(found[name] for name in positive) > 0


@pytest.mark.serial
def test_editors_are_served_and_reconnect_after_losing_their_streams() -> None:
    found = run("sessions", "--storm", "--set", "shed.lag_ms=0")
    assert (found["sessions"], found["reconnects"], found["sessions_lost"]) == (40, 40, 0)
    assert found["requests_per_s"] > 10
    assert found["rate_ratio_to_bare_grpc"] > 0
    assert found["messages_per_request"] > 1


@pytest.mark.serial
def test_the_editors_that_a_server_can_promise_an_answer_are_found(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "capacity.svg"
    found = run("capacity", "--only", "this server, completion cache off", *SCRIPTED, "--picture", str(picture))
    assert min(found["editors_short"], found["editors_long"]) >= 1
    assert found.keys() >= {"ratio_short_cache_off", "ratio_long_cache_off_low", "contexts"}
    assert picture.read_text().startswith("<?xml")


@pytest.mark.serial
def test_contestants_complete_at_the_same_cursors(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    model, server = str(ROOT / "target_model" / "embedded-bf16"), "server, scripted"
    names = ("plain", f"{server}: engine.kind=scripted engine.warm_up=false")
    contestants = [flag for name in names for flag in ("--contestant", name)]
    found = run("quality", "--model", model, *contestants, "--answers", str(answers))
    assert found["contestants"] == {"plain": "plain", "server_scripted": server}
    assert found["by_kind"].keys() == {"word", "gap", "line", "body", "closer"}
    assert found["plain_empty_low"] <= found["plain_empty"] <= found["plain_empty_high"]
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(lines) == found["cursors"] >= 20
    assert all("\n" not in each["answers"]["plain"] for each in lines if each["kind"] != "body")


@pytest.mark.serial
def test_attacks_are_measured_in_three_phases() -> None:
    chosen = [argument for attack in ATTACKS for argument in ("--attack", attack)]
    attacks = run("attacks", "--json", *chosen)["attacks"]
    assert [each["attack"] for each in attacks] == [*ATTACKS]
    for found in attacks:
        assert sum(found["attacker"].values()) >= 1, found["attack"]
        for phase in ("calm", "attack", "after"):
            assert 0 <= found[f"{phase}_share_in_time"] <= 1
            assert found[f"{phase}_peak_rss_mib"] > 0
        assert found["calm_share_in_time"] > 0.5


def test_replicas_supersede_each_others_requests() -> None:
    require_redis()
    found = run("replicas", "--part", "supersede", "--json")
    assert 0 < found["supersede_p50_ms"] <= found["supersede_p99_ms"]
    assert found["supersede_missed"] == 0
