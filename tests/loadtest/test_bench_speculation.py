"""The benchmark of speculation, in small: two real servers with scripted engines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.serial

FIGURES = {
    "best_k_batch_1", "speedup_batch_1", "speedup_over_no_draft_batch_1", "off_over_no_draft_batch_4",
    "crossover_batch", "tuned_over_best_fixed", "tuned_over_off", "tuned_over_no_draft", "live_change_ms_p99",
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
    assert document["ks"] == [1, 4]
    assert document["figures"]["best_k_batch_1"] == found["best_k_batch_1"]
    assert (tmp_path / "tuning.html").read_text().startswith("<!doctype html>")
