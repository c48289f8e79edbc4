"""Benchmarks in small, as commands: real servers with scripted engines, and the keys of the last line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.models import ROOT

pytestmark = [pytest.mark.serial, pytest.mark.full, pytest.mark.timeout(300)]


def run(module: str, *options: str) -> dict[str, Any]:
    """Return the last line of a benchmark."""
    command = [sys.executable, "-m", f"loadtest.bench.{module}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=290)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


SMALL = ("--sessions", "40", "--requests-per-s", "40", "--seconds", "5")


def test_the_parts_of_a_request_are_measured_in_process() -> None:
    found = run("requests", *SMALL, "--rounds", "1", "--in-process-only")
    assert found["front_end_cpu_ms"] > found["prompt_cpu_ms"] > 0
    assert found.keys() >= {"streams_cpu_ms", "scheduling_cpu_ms", "engine_cpu_ms"}


def test_editors_are_served_and_reconnect_after_losing_their_streams() -> None:
    found = run("sessions", *SMALL, "--storm", "--set", "shed.lag_ms=0")
    assert found.keys() >= {
        "errors", "front_end_ttft_p99_ms", "server_kib_per_session", "generator_lag_p99_ms",
        "server_cpu_s_per_1000_requests", "reconnect_p99_ms",
    }  # fmt: skip
    assert (found["sessions"], found["reconnects"], found["sessions_lost"]) == (40, 40, 0)
    assert found["requests_per_s"] > 10
    assert found["rate_ratio_to_bare_grpc"] > 0
    assert found["messages_per_request"] > 1


def test_every_k_is_measured_beside_a_server_without_drafts(tmp_path: Path) -> None:
    scripted = ("engine.kind=scripted", "engine.draft_model=some/draft", "engine.scripted_acceptance=0.6")
    settings = [flag for each in scripted for flag in ("--set", each)]
    found = run("speculation", "--quick", "--changes", "3", *settings, "--out", str(tmp_path))
    assert found.keys() >= {
        "best_k_batch_1", "speedup_over_no_draft_batch_1", "off_over_no_draft_batch_4", "crossover_batch",
        "tuned_over_best_fixed", "tuned_over_off",
    }  # fmt: skip
    assert found["live_change_ms_p99"] >= found["live_change_ms_p50"] >= found["live_change_call_ms_p50"] > 0
    assert found["speedup_batch_1"] > 0
    assert found["tuned_over_no_draft"] > 0
    document = json.loads((tmp_path / "tuning.json").read_text())
    assert {each["variant"] for each in document["cells"]} == {"K = 0", "K = 1", "K = 4", "no draft"}
    assert document["ks"] == [1, 4]
    assert document["figures"]["best_k_batch_1"] == found["best_k_batch_1"]
    assert (tmp_path / "tuning.html").read_text().startswith("<!doctype html>")


def test_policies_take_turns_on_the_same_traces(tmp_path: Path) -> None:
    scripted = ("--set", "engine.kind=scripted", "--target", "scheduler", "--target", "plain")
    found = run("scheduler", "--quick", *scripted, "--load", "2", "--picture", str(tmp_path / "seen.svg"))
    assert found.keys() >= {"capacity_per_s", "typing", "options", "traces", "wasted_token_share_2x"}
    assert found["seen_ratio_2x_to_plain"] > 1
    assert found["seen_ratio_2x_to_vllm_serve"] is None
    assert found["loads"]["2"].keys() == {"scheduler", "plain"}
    assert (tmp_path / "seen.svg").read_text().startswith("<?xml")


def test_the_editors_that_a_server_can_promise_an_answer_are_found(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "capacity.svg"
    only = ("--only", "this server, completion cache off", "--set", "engine.kind=scripted")
    found = run("capacity", "--quick", *only, "--picture", str(picture))
    assert found["editors_short"] >= 1
    assert found["editors_long"] >= 1
    assert found.keys() >= {"ratio_short_cache_off", "ratio_long_cache_off_low", "workload", "contexts"}
    assert picture.read_text().startswith("<?xml")


def test_clients_are_compared_and_each_rule_is_switched_off() -> None:
    found = run("policy", "--seeds", "1", "--seconds", "5")
    for load in ("calm", "busy"):
        for client in ("policy", "every_key", "llama_vim", "llama_vscode"):
            assert found[f"{load}_{client}_tokens_per_seen"] > 0
    assert found["without_typed_along_requests_per_key"] > 0
    assert found["without_back_off_seen_per_s_low"] <= found["without_back_off_seen_per_s_high"]


def test_contestants_complete_at_the_same_cursors(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    model, healed, server = str(ROOT / "target_model" / "embedded-bf16"), "plain, healed", "server, scripted"
    names = ("plain", healed, f"{server}: engine.kind=scripted engine.warm_up=false")
    contestants = [flag for name in names for flag in ("--contestant", name)]
    small = ("--cursors", "1", "--before", "300", "--line-tokens", "4", "--body-tokens", "4", "--show", "2")
    found = run("quality", "--model", model, *small, *contestants, "--answers", str(answers))
    assert found["cursors"] >= 20
    assert found["contestants"] == {"plain": "plain", "plain_healed": healed, "server_scripted": server}
    assert found["by_kind"].keys() == {"word", "gap", "line", "body", "closer"}
    assert found["plain_empty_low"] <= found["plain_empty"] <= found["plain_empty_high"]
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(lines) == found["cursors"]
    assert all(each["answers"].keys() == {"plain", healed, server} for each in lines)
    assert all("\n" not in each["answers"]["plain"] for each in lines if each["kind"] != "body")
