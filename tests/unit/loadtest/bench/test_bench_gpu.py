"""The GPU benchmark without a GPU: its models, what it would start, and what it computes from what it finds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.gpu.__main__ import session_figures
from loadtest.bench.gpu.functional import LAST, VARIANTS, figures
from loadtest.bench.gpu.models import draft_settings, session_settings, write_models
from tests.support.models import ROOT


def test_the_models_have_the_vocabulary_of_their_tokenizer(tmp_path: Path) -> None:
    write_models(tmp_path, is_tiny=False)
    for name in ("target", "draft"):
        assert json.loads((tmp_path / name / "config.json").read_text())["vocab_size"] == 4096
        assert (tmp_path / name / "tokenizer.json").exists()


def test_drafts_are_accepted_at_a_set_rate_on_a_gpu_alone() -> None:
    prefix = "engine.vllm.speculative_config.synthetic_acceptance_rates="
    [rates] = [each.removeprefix(prefix) for each in session_settings(Path("models")) if each.startswith(prefix)]
    assert json.loads(rates) == pytest.approx([0.82, 0.82**2, 0.82**3, 0.82**4, 0.82**5])
    assert not any("synthetic" in each for each in draft_settings(Path("models"), 8, 5, is_tiny=True))


WORKS = {"aborted_s": 0.1, "restarted_s": 20.0, "left_processes": 0, "left_gpu_mib": 0}


@pytest.mark.parametrize(
    ("drafted", "found", "failed"),
    [
        (["a", "b", "c", "x"], WORKS, set()),  # as many as by rounding
        (["a", "b", "x", "x"], WORKS, {"greedy"}),
        (["a", "b", "c", "d"], WORKS | {"aborted_s": None}, {"abort"}),
        (["a", "b", "c", "d"], WORKS | {"restarted_s": None}, {"restart"}),
        (["a", "b", "c", "d"], WORKS | {"left_processes": 1}, {"end"}),
        (["a", "b", "c", "d"], WORKS | {"left_gpu_mib": 900}, {"end"}),
    ],
)
def test_drafts_may_change_no_more_than_rounding_does(
    drafted: list[str], found: dict[str, Any], failed: set[str]
) -> None:
    answers = {"alone": ["a", "b", "c", "d"], "together": ["a", "b", "c", "y"]}
    measured = {name: {"answers": {"K = 4": drafted} if each.control else answers} for name, each in VARIANTS.items()}
    measured[LAST] |= found
    verdict = figures(measured)
    assert {name for name, passed in verdict["passed"].items() if not passed} == failed
    assert verdict["is_passed"] is not bool(failed)


def test_the_sessions_are_those_of_the_largest_run_that_passed() -> None:
    trials = [{"sessions": each, "is_passed": each < 1000, "figures": {"p95": each / 4}} for each in (250, 500, 1000)]
    given = {"sessions": 500, "fails_at": 1000, "is_generator_bound": False, "trials": trials}
    assert session_figures(given)["figures"] == {"p95": 125}
    assert session_figures(given | {"trials": trials[2:], "sessions": 0})["figures"] == {}


# What an interpreter sees for which nothing of this project was installed, and a process that it starts.
BARE = """
import importlib.metadata as metadata, subprocess, sys
from completion_server.engine.vllm import process
from loadtest.bench.gpu.__main__ import find_plugins
LIST = f"import importlib.metadata as m;print(*sorted(x.value for x in m.entry_points(group={process.PLUGIN_GROUP!r})))"
for path in [each for each in sys.path if "site-packages" in each]:
    sys.path.remove(path)
assert not metadata.entry_points(group=process.PLUGIN_GROUP)
find_plugins(__import__("pathlib").Path(sys.argv[1]))
found = metadata.entry_points(group=process.PLUGIN_GROUP)
print(*sorted(each.value for each in found))
print(subprocess.run([sys.executable, "-S", "-c", LIST], check=True, capture_output=True, text=True).stdout, end="")
"""


def test_a_checkout_that_is_not_installed_has_its_plugins(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "proto")))}
    environment.pop("VLLM_PLUGINS", None)
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    plugins = "completion_server.engine.vllm.cpu:register completion_server.engine.vllm.process:register"
    assert done.stdout.splitlines() == [plugins, plugins]
