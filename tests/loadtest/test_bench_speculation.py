"""The benchmark of speculation, in small: two real servers with scripted engines; the arithmetic of its GPU script."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.speculation.gpu import DRAFT, TARGET, acceptance_by_position, crossing

pytestmark = pytest.mark.serial

FIGURES = {
    "best_k_batch_1", "speedup_batch_1", "speedup_batch_1_over_no_draft", "crossover_batch", "tuned_over_best_fixed",
    "tuned_over_off", "tuned_over_no_draft", "live_change_ms_p99",
}  # fmt: skip


@pytest.mark.full
@pytest.mark.timeout(300)
def test_every_figure_is_there(tmp_path: Path) -> None:
    scripted = ("engine.kind=scripted", "engine.draft_model=some/draft", "engine.scripted_acceptance=0.6")
    settings = [flag for each in scripted for flag in ("--set", each)]
    command = [sys.executable, "-m", "loadtest.bench.speculation", "--quick", "--changes", "3", *settings]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False, timeout=290)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() >= FIGURES
    assert found["live_change_ms_p99"] >= found["live_change_ms_p50"] > 0
    assert found["speedup_batch_1"] > 0
    assert found["tuned_over_no_draft"] > 0
    document = json.loads((tmp_path / "tuning.json").read_text())
    assert {each["variant"] for each in document["cells"]} == {"K = 0", "K = 1", "K = 4", "no draft"}
    assert document["figures"]["best_k_batch_1"] == found["best_k_batch_1"]
    assert (tmp_path / "tuning.html").read_text().startswith("<!doctype html>")


def test_synthetic_acceptance_is_of_drafts_up_to_each_position() -> None:
    assert acceptance_by_position(0.5, 3) == [0.5, 0.25, 0.125]


@pytest.mark.parametrize(
    ("speedups", "where"),
    [
        ({1: 2.0, 16: 1.0}, 16.0),
        ({1: 2.0, 4: 2.0, 16: 0.5}, 8.0),
        ({1: 0.9, 4: 0.8}, 1.0),
        ({1: 2.0, 64: 1.1}, None),
    ],
)
def test_the_crossing_lies_between_two_batch_sizes(speedups: dict[int, float], where: float | None) -> None:
    assert crossing(speedups) == pytest.approx(where)


def test_the_models_have_the_sizes_in_their_names() -> None:
    assert 12.5e9 < num_parameters(TARGET) < 13.5e9
    assert 1.0e9 < num_parameters(DRAFT) < 1.01e9


def num_parameters(config: Mapping[str, Any]) -> float:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    attention = 2 * hidden**2 * (1 + config["num_key_value_heads"] / heads)
    layer = attention + 3 * hidden * config["intermediate_size"]
    embeddings = 1 if config["tie_word_embeddings"] else 2
    return float(config["num_hidden_layers"] * layer + embeddings * config["vocab_size"] * hidden)
