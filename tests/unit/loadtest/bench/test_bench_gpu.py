"""The GPU benchmark without a GPU: its models, what it would start, and what it computes from what it finds."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from draft_model.core import find_preset
from loadtest.bench.gpu.__main__ import PARTS, TINY_PARTS
from loadtest.bench.gpu.engines import DRAFT, RUNNER, SCHEDULE, TARGET, acceptance_by_position, write_models
from loadtest.bench.gpu.functional import LAST, VARIANTS
from loadtest.bench.gpu.functional import figures as functional_figures
from loadtest.bench.gpu.sessions import figures as session_figures
from loadtest.bench.gpu.speculation import Rates, SpeculationPlan, contestants, crossing
from loadtest.bench.gpu.speculation import figures as speculation_figures
from loadtest.bench.gpu.ttft import TtftPlan
from tests.support.models import ROOT


def test_the_models_have_the_shapes_that_they_are_called_by(tmp_path: Path) -> None:
    shape = find_preset("draft-1b").shape
    assert {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context_tokens,
        "tie_word_embeddings": True,  # of every preset
    }.items() <= DRAFT.items()
    assert 12.5e9 < num_parameters(TARGET) < 13.5e9
    assert 1.0e9 < num_parameters(DRAFT) < 1.01e9
    assert TARGET["vocab_size"] == DRAFT["vocab_size"]
    assert TARGET["hidden_size"] // TARGET["num_attention_heads"] == DRAFT["head_dim"]
    write_models(tmp_path, is_tiny=False, is_served=True)
    for name in ("target", "draft"):
        assert json.loads((tmp_path / name / "config.json").read_text())["vocab_size"] == 4096, "the tokenizer's"
        assert (tmp_path / name / "tokenizer.json").exists()


def num_parameters(config: Mapping[str, Any]) -> float:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    attention = 2 * hidden**2 * (1 + config["num_key_value_heads"] / heads)
    layer = attention + 3 * hidden * config["intermediate_size"]
    embeddings = 1 if config["tie_word_embeddings"] else 2
    return float(config["num_hidden_layers"] * layer + embeddings * config["vocab_size"] * hidden)


def test_each_way_has_its_runner_and_its_graphs() -> None:
    found = {way.name: way for way in SpeculationPlan().ways(Path("models"))}
    assert {name: way.env.get(RUNNER) for name, way in found.items()} == {
        "no draft": None, "schedule": "0", "fixed": "0", "full graphs": "0", "full graphs alone": "0",
        "newer runner": "1",
    }  # fmt: skip
    drafts = {name: way.args["speculative_config"] for name, way in found.items() if name != "no draft"}
    assert {name for name, config in drafts.items() if SCHEDULE in config} == {"schedule", "newer runner"}
    assert {name for name, way in found.items() if not way.live_ks} == {"no draft", "fixed"}
    assert drafts["newer runner"][SCHEDULE] == [[1, 15, 5], [16, 16, 0]], "which Ks have graphs"
    assert acceptance_by_position(0.5, 3) == [0.5, 0.25, 0.125], "of drafts up to each position"
    assert all(config["synthetic_acceptance_rates"] == acceptance_by_position(0.82, 5) for config in drafts.values())
    assert "speculative_config" not in found["no draft"].args
    names = [name for way in found.values() for name in contestants(way)]
    assert len(names) == len(set(names)) == 10


def test_the_engines_of_a_part_share_the_gpu() -> None:
    for plan in (SpeculationPlan(), TtftPlan()):
        ways = plan.ways(Path("models"))
        shares = sorted(way.args["gpu_memory_utilization"] for way in ways)
        assert sum(shares[-2:]) <= 0.92, "two are up at once"
        assert all(way.args["load_format"] == "dummy" for way in ways)
    assert [way.args["max_num_batched_tokens"] for way in TtftPlan().ways(Path("models"))] == [2048, 8192]


def test_small_shapes_are_for_a_cpu() -> None:
    assert list(PARTS) == list(TINY_PARTS) == ["functional", "speculation", "ttft", "sessions"]
    ways = SpeculationPlan().ways(Path("models"), is_tiny=True)
    assert [way.name for way in ways] == ["no draft", "schedule", "fixed", "full graphs"], "a CPU has no newer runner"
    assert not any("gpu_memory_utilization" in way.args for way in ways)


@pytest.mark.parametrize(
    ("speedups", "where"),
    [
        ({1: 2.0, 16: 1.0}, 16.0),
        ({1: 2.0, 4: 2.0, 16: 0.5}, 8.0),
        ({1: 0.9, 4: 0.8}, 1.0),
        ({1: 2.0, 64: 1.1}, None),
    ],
)
def test_where_the_speed_up_ends_lies_between_two_sizes(speedups: dict[int, float], where: float | None) -> None:
    assert crossing(speedups) == pytest.approx(where)


def test_speed_ups_are_over_the_engine_without_a_draft() -> None:
    plain, fast = [100.0, 101.0, 99.0], [200.0, 202.0, 198.0]
    slower = [each / 2 for each in plain]
    measured: dict[str, Rates] = {
        "fixed": {"no draft": rates(plain), "fixed": rates(fast)},
        "schedule": {"no draft": rates(slower), "schedule, K = 5": rates(fast)},
    }
    found = speculation_figures(measured)
    assert found["fixed"]["1"]["speedup"].value == pytest.approx(2.0)
    assert found["schedule, K = 5"]["1"]["speedup"].value == pytest.approx(4.0), (
        "over the engine without a draft beside it"
    )
    assert found["no draft"]["1"] == {"tokens_per_s": 75.0, "tokens_per_s_of_a_request": 75.0}


def rates(values: list[float]) -> dict[str, dict[str, list[float]]]:
    return {"1": {"total": values, "alone": values}}


WORKS = {"aborted_s": 0.1, "restarted_s": 20.0, "left_processes": 0, "left_gpu_mib": 0}


@pytest.mark.parametrize(
    ("drafted", "found", "failed"),
    [
        (["a", "b", "c", "d"], WORKS, set()),
        (["a", "b", "c", "x"], WORKS, set()),
        (["a", "b", "x", "x"], WORKS, {"greedy"}),
        (["a", "b", "c", "d"], WORKS | {"aborted_s": None}, {"abort"}),
        (["a", "b", "c", "d"], WORKS | {"restarted_s": None}, {"restart"}),
        (["a", "b", "c", "d"], WORKS | {"left_processes": 1}, {"end"}),
        (["a", "b", "c", "d"], WORKS | {"left_gpu_mib": 900}, {"end"}),
    ],
    ids=["same", "as much as by rounding", "more", "abort", "restart", "process", "memory"],
)
def test_drafts_may_change_no_more_than_rounding_does(
    drafted: list[str], found: dict[str, Any], failed: set[str]
) -> None:
    answers = {"alone": ["a", "b", "c", "d"], "together": ["a", "b", "c", "y"]}
    measured = {name: {"answers": {"K = 4": drafted} if each.control else answers} for name, each in VARIANTS.items()}
    measured[LAST] |= found
    verdict = functional_figures(measured)
    assert {name for name, passed in verdict["passed"].items() if not passed} == failed
    assert verdict["is_passed"] is not bool(failed)


def test_texts_are_compared_with_those_of_the_same_runner() -> None:
    runners = {name: each.env.get(RUNNER) for name, each in VARIANTS.items()}
    assert {name: runners[each.control] for name, each in VARIANTS.items() if each.control} == {
        "n-gram": None,  # vLLM's own choice, the newer one
        "full graphs": "0",
        "schedule": "0",
    }
    measured: dict[str, Any] = {name: {"answers": {"K = 4": ["a", "x"]}} for name in VARIANTS}
    measured["no draft"] = {"answers": {"alone": ["a", "b"], "together": ["a", "b"]}}
    measured["no draft, older runner"] = {"answers": {"alone": ["a", "x"], "together": ["a", "x"]}}
    measured[LAST] |= WORKS
    same = functional_figures(measured)["same_as_no_draft"]
    assert (same["schedule, K = 4"], same["n-gram, K = 4"]) == (1, 0.5)


def test_the_sessions_are_those_of_the_largest_run_that_passed() -> None:
    trials = [
        {"sessions": 250, "is_passed": True, "figures": {"pause_ttft_ms_p95": 80.0}},
        {"sessions": 500, "is_passed": True, "figures": {"pause_ttft_ms_p95": 150.0}},
        {"sessions": 1000, "is_passed": False, "figures": {"pause_ttft_ms_p95": 900.0}},
    ]
    given = {"sessions": 500, "fails_at": 1000, "is_generator_bound": False, "trials": trials}
    assert session_figures(given)["figures"] == {"pause_ttft_ms_p95": 150.0}
    assert session_figures(given | {"trials": trials[2:], "sessions": 0})["figures"] == {}


# What an interpreter sees for which nothing of this project was installed, and a process that it starts.
BARE = """
import importlib.metadata as metadata, subprocess, sys
from completion_server.engine.vllm import process
LIST = f"import importlib.metadata as m;print(*sorted(x.value for x in m.entry_points(group={process.PLUGIN_GROUP!r})))"
for path in [each for each in sys.path if "site-packages" in each]:
    sys.path.remove(path)
from loadtest.bench.gpu.plugins import find_plugins
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
