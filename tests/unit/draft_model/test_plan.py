"""Budgets, rates and plans: operations against counts made by hand, the peak of a GPU, where a utilisation is from."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from draft_model.commands.train import plan as plan_command
from draft_model.core import PipelineError, TrainSettings, find_preset
from draft_model.training import world
from draft_model.training.optim import learning_rate_scale
from draft_model.training.plan import describe_plan, make_plan, measured_utilisation
from draft_model.training.run import METRICS
from draft_model.training.trainer import Budget
from draft_model.training.world import known_flops, peak_flops

DRAFT = find_preset("draft-1b")
COMMAND = ["--gpus", "8", "--gpu", "a100", "--tokens", "50e9"]


def test_a_pause_spends_a_few_steps_and_a_lasting_slowdown_its_time() -> None:
    paused, slow = Budget(minutes=10), Budget(minutes=10)
    for duration_s in [2.0] * 20 + [900.0]:
        paused.spend_step(duration_s)
    assert (paused.active_s, paused.progress, paused.left_s) == pytest.approx((48.0, 0.08, 552.0))
    for duration_s in [1.0] * 10 + [10.0] * 40:
        slow.spend_step(duration_s)
    assert slow.active_s > 250.0


def test_steps_are_counted_exactly_and_one_kind_of_budget_is_given() -> None:
    budget = Budget(steps=4)
    for progress in (0.0, 0.25, 0.5, 0.75, 1.0, 1.0):
        assert budget.progress == progress
        budget.spend_step(1.0)
    assert budget.left_s == 0.0
    assert Budget(steps=0).progress == Budget(minutes=0).progress == 1.0
    for given in ({}, {"minutes": 1, "steps": 1}):
        with pytest.raises(ValueError, match="one of them"):
            Budget(**given)


def test_the_rate_warms_up_stays_and_decays_to_zero() -> None:
    settings = TrainSettings(minutes=1, warmup_steps=10, decay_from=0.5)
    assert learning_rate_scale(0.0, 0, settings) == pytest.approx(0.1)
    assert learning_rate_scale(0.2, 100, settings) == 1.0
    assert learning_rate_scale(0.75, 100, settings) == pytest.approx(0.5)
    assert learning_rate_scale(1.0, 100, settings) == 0.0


def write_run(folder: Path, *shares: float, divergence: float = 0.0) -> Path:
    folder.mkdir()
    steps = [{"utilisation": share, "divergence": divergence} for share in shares]
    (folder / METRICS).write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


def printed(*more: str) -> dict[str, Any]:
    result = CliRunner().invoke(plan_command, [*COMMAND, *more, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_operations_are_counted_by_hand() -> None:
    shape = DRAFT.shape
    dense = 6 * (shape.num_matrix_parameters + 32_016 * 2048)
    assert shape.flops_per_token(0) == dense
    assert shape.flops_per_token(4096) == dense + 6 * 12 * 2048 * 4096


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA B200", 2250),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("AMD Instinct MI300X", 1307),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA L40", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Tesla T4", None),
    ],
)
def test_a_gpus_peak_is_found_by_its_exact_name(name: str, tera: float | None) -> None:
    assert known_flops(name) == (None if tera is None else tera * 1e12)


def test_a_peak_that_is_not_known_is_measured_in_a_product_as_large_as_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[tuple[str, int]] = []

    def measure(device: str, size: int) -> float:
        measured.append((device, size))
        return 1e12

    monkeypatch.setattr(world, "measured_flops", measure)
    monkeypatch.setattr(torch.cuda, "get_device_name", {"cuda:0": "NVIDIA A10G", "cuda:1": "NVIDIA RTX A1000"}.get)
    assert [peak_flops(device) for device in ("cuda:0", "cuda:1", "cpu")] == [70e12, 1e12, 1e12]
    assert measured == [("cuda:1", 8192), ("cpu", 1024)]


def test_a_plan_of_nothing_or_for_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(PipelineError, match="no figures for the GPU 'abacus'"):
        make_plan(DRAFT, 1e9, "abacus", 8)
    with pytest.raises(PipelineError, match="tokens: must be above 0, not 0"):
        make_plan(DRAFT, 0, "a100", 8)
    with pytest.raises(PipelineError, match="teacher parameters: must be 0 or more, not -5"):
        make_plan(DRAFT, 1e9, "a100", 8, num_teacher_parameters=-5)


def test_a_teacher_adds_a_forward_pass_to_the_known_cost_of_a_run() -> None:
    alone, taught = (make_plan(DRAFT, 50e9, "a100", 8, num_teacher_parameters=size) for size in (0, 13_000_000_000))
    assert 2.5 < alone.days < 5.0
    assert alone.gpu_hours == pytest.approx(alone.days * 24 * 8)
    assert alone.dollars == pytest.approx(alone.gpu_hours * 1.8)
    assert alone.state_gib_per_gpu < alone.gib_per_gpu == 80
    assert "1.00B parameters" in describe_plan(alone)
    assert "teacher" not in describe_plan(alone)
    assert taught.teacher_flops == 50e9 * 2 * 13e9
    assert taught.flops == alone.flops + taught.teacher_flops
    more = taught.flops / alone.flops
    for name in ("days", "gpu_hours", "dollars"):
        assert getattr(taught, name) == pytest.approx(more * getattr(alone, name))
    assert taught.tokens_per_s == pytest.approx(alone.tokens_per_s / more)
    assert taught.state_gib_per_gpu - alone.state_gib_per_gpu == pytest.approx(26e9 / 8 / 2**30)
    assert "1.30e+21 of them in a teacher of 13.00B parameters" in describe_plan(taught)


def test_the_plan_says_where_its_utilisation_is_from(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 0.0, 0.01, 0.4, 0.42)
    assert (printed()["utilisation"], printed()["utilisation_source"]) == (0.35, "assumed")
    given = printed("--utilisation", "0.5")
    assert (given["utilisation"], given["utilisation_source"]) == (0.5, "given")
    measured = printed("--from-run", str(run), "--teacher-parameters", "13e9")
    assert (measured["utilisation"], measured["utilisation_source"]) == (0.4, f"measured in {run}")
    assert measured["num_teacher_parameters"] == 13_000_000_000
    shown = CliRunner().invoke(plan_command, [*COMMAND, "--from-run", str(run)]).output
    assert f"at 40.0% of the peak (measured in {run})" in shown


def test_a_run_that_measured_nothing_or_a_utilisation_beside_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there is no run in .*nowhere"):
        measured_utilisation(tmp_path / "nowhere")
    with pytest.raises(PipelineError, match=r"must be at most 1, it is 1\.3"):
        measured_utilisation(write_run(tmp_path / "above", 1.3))
    zeros = ["--from-run", str(write_run(tmp_path / "zeros", 0.0, 0.0))]
    for more, status, said in (
        (zeros, 1, "no step with a utilisation above 0 among 2"),
        ([*zeros, "--utilisation", "0.5"], 2, "give --utilisation or --from-run, one of them"),
    ):
        result = CliRunner().invoke(plan_command, [*COMMAND, *more])
        assert (result.exit_code, said in result.output, "Traceback" in result.output) == (status, True, False)


def test_the_teacher_of_a_measured_run_does_not_count_twice(tmp_path: Path) -> None:
    distilled = measured_utilisation(write_run(tmp_path / "run", 0.2, divergence=1.5))
    assert distilled.source.endswith("run, its teacher's time included")
    assert make_plan(DRAFT, 1e9, "a100", 8, distilled).teacher_flops == 0
    with pytest.raises(PipelineError, match="the teacher would count twice"):
        make_plan(DRAFT, 1e9, "a100", 8, distilled, num_teacher_parameters=13)
