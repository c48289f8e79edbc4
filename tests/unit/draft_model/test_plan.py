"""Plans: operations against counts made by hand, the peak of a GPU, and the cost of a teacher."""

import json

import pytest
from click.testing import CliRunner

from draft_model.commands.train import plan
from draft_model.core import PipelineError, find_preset
from draft_model.training.plan import known_flops, make_plan

DRAFT = find_preset("draft-1b")


def test_operations_are_counted_by_hand() -> None:
    dense = 6 * (DRAFT.shape.num_matrix_parameters + 32_016 * 2048)
    assert DRAFT.shape.flops_per_token(0) == dense
    assert DRAFT.shape.flops_per_token(4096) == dense + 6 * 12 * 2048 * 4096


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H200 NVL", 835),
        ("NVIDIA A100 80GB PCIe", 312), ("NVIDIA A10", 125), ("NVIDIA A10G", 70), ("AMD Instinct MI300X", 1307),
        ("NVIDIA RTX A1000", None), ("NVIDIA L40", None), ("NVIDIA GH200 480GB", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
    ],
)  # fmt: skip
def test_a_gpus_peak_is_found_by_its_exact_name(name: str, tera: float | None) -> None:
    assert known_flops(name) == (None if tera is None else tera * 1e12)


def test_a_teacher_adds_a_forward_pass_to_the_cost_of_a_run() -> None:
    alone, taught = (make_plan(DRAFT, 50e9, "a100", 8, num_teacher_parameters=size) for size in (0, 13_000_000_000))
    assert 2.5 < alone.days < 5.0
    assert alone.gpu_hours == pytest.approx(alone.days * 24 * 8)
    assert alone.dollars == pytest.approx(alone.gpu_hours * 1.8)
    assert taught.flops == alone.flops + 50e9 * 2 * 13e9
    assert taught.days == pytest.approx(alone.days * taught.flops / alone.flops)
    assert taught.state_gib_per_gpu - alone.state_gib_per_gpu == pytest.approx(26e9 / 8 / 2**30)
    assert "1.00B parameters and 13.00B of a teacher" in str(taught)
    with pytest.raises(PipelineError, match="no figures for the GPU 'abacus'"):
        make_plan(DRAFT, 1e9, "abacus", 8)


def test_the_command_takes_a_measured_utilisation() -> None:
    command = ["--gpus", "8", "--gpu", "a100", "--tokens", "50e9", "--utilisation", "0.5"]
    assert json.loads(CliRunner().invoke(plan, [*command, "--json"]).stdout)["utilisation"] == 0.5
    assert "at 50.0% of the peak" in CliRunner().invoke(plan, command).stdout
