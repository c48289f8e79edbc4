"""Kinds of GPUs, and the estimate of a training run: days, GPU hours, cost and memory from a utilisation."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import torch

from draft_model.core import PipelineError, Preset

DEFAULT_UTILISATION = 0.35
"""A cautious guess for FSDP2 in bfloat16 without tuning; `train` logs the measured one."""
BYTES_PER_MATRIX_PARAMETER = 4 + 4 + 4 + 2
"""Weight, gradient and Muon's momentum in float32, and the bfloat16 copy for computing."""
BYTES_PER_OTHER_PARAMETER = 4 + 4 + 8 + 2
"""The same with AdamW's two moments."""
BYTES_PER_TEACHER_PARAMETER = 2
"""Bfloat16, sharded over the GPUs like the draft."""
TEACHER_FLOPS_PER_PARAMETER = 2
"""Operations per parameter and token of a forward pass, a third of training's six; attention is not counted."""


class Gpu(NamedTuple):
    """A kind of GPU: dense bfloat16 operations per second, memory, a rough on-demand price per hour, bytes a second."""

    peak_flops: float
    gib: int
    dollars: float
    bytes_per_s: float


GPUS = {
    "a100": Gpu(312e12, 80, 1.8, 2039e9),
    "h100": Gpu(989e12, 80, 2.9, 3350e9),
    "h100-pcie": Gpu(756e12, 80, 2.4, 2000e9),
    "h100-nvl": Gpu(835e12, 94, 2.6, 3900e9),
    "h200": Gpu(989e12, 141, 3.6, 4800e9),
    "h200-nvl": Gpu(835e12, 141, 3.4, 4800e9),
    "b200": Gpu(2250e12, 192, 5.5, 8000e9),
    "l40s": Gpu(362e12, 48, 1.0, 864e9),
    "l4": Gpu(121e12, 24, 0.7, 300e9),
    "a10": Gpu(125e12, 24, 0.7, 600e9),
    "a10g": Gpu(70e12, 24, 1.0, 600e9),
    "mi300x": Gpu(1307e12, 192, 3.0, 5300e9),
}
"""Peaks from the makers' data sheets; SXM unless the key names another variant."""


def find_gpu(name: str) -> Gpu:
    """The figures of a GPU by its key in `GPUS`; PipelineError lists the known ones when there is none."""
    try:
        return GPUS[name]
    except KeyError:
        raise PipelineError(f"no figures for the GPU {name!r}; there are: {', '.join(sorted(GPUS))}") from None


def known_flops(name: str) -> float | None:
    """The table's figure for a GPU by the name that torch reports; None for an unknown GPU or a slice of one."""
    # Whole words: "a10" is in A10G and A100, "a100" in RTX A1000. The key with the most words names the variant.
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    fitting = [gpu for gpu in GPUS if words.issuperset(gpu.split("-"))]
    if "mig" in words or not fitting:
        return None
    return GPUS[max(fitting, key=lambda gpu: gpu.count("-"))].peak_flops


def device_name() -> str:
    """The device that this process trains on, in words."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU cores"


@dataclass(frozen=True)
class TrainingPlan:
    """The estimate. Operations include the teacher's; memory is that of weights, optimiser and teacher on each GPU.

    Activations take memory on top.
    """

    num_parameters: int
    num_teacher_parameters: int
    flops: float
    utilisation: float
    tokens_per_s: float
    days: float
    gpu_hours: float
    dollars: float
    state_gib_per_gpu: float
    gib_per_gpu: int

    def __str__(self) -> str:
        """The plan in a few lines."""
        teacher = f" and {self.num_teacher_parameters / 1e9:.2f}B of a teacher" if self.num_teacher_parameters else ""
        return (
            f"{self.num_parameters / 1e9:.2f}B parameters{teacher}, {self.flops:.2e} operations\n"
            f"{self.tokens_per_s:,.0f} tokens/s at {self.utilisation:.1%} of the peak\n"
            f"{self.days:.1f} days, {self.gpu_hours:,.0f} GPU hours, about ${self.dollars:,.0f}\n"
            f"{self.state_gib_per_gpu:.1f} of {self.gib_per_gpu} GiB a GPU for all weights and the optimiser, "
            "the rest for activations"
        )


def make_plan(
    preset: Preset, num_tokens: float, gpu: str, num_gpus: int, utilisation: float = DEFAULT_UTILISATION,
    num_teacher_parameters: int = 0,
) -> TrainingPlan:  # fmt: skip
    """The plan for training `preset` on `num_tokens`, with a teacher if `num_teacher_parameters` is above 0.

    `utilisation` is the share of the GPUs' peak that goes into both models. PipelineError for an unknown GPU.
    """
    shape, kind = preset.shape, find_gpu(gpu)
    per_token = shape.flops_per_token(shape.context_tokens) + TEACHER_FLOPS_PER_PARAMETER * num_teacher_parameters
    tokens_per_s = num_gpus * kind.peak_flops * utilisation / per_token
    hours = num_tokens / tokens_per_s / 3600
    others = shape.num_parameters - shape.num_matrix_parameters
    state = shape.num_matrix_parameters * BYTES_PER_MATRIX_PARAMETER + others * BYTES_PER_OTHER_PARAMETER
    state += num_teacher_parameters * BYTES_PER_TEACHER_PARAMETER
    return TrainingPlan(
        shape.num_parameters, num_teacher_parameters, num_tokens * per_token, utilisation, tokens_per_s, hours / 24,
        hours * num_gpus, hours * num_gpus * kind.dollars, state / num_gpus / 2**30, kind.gib,
    )  # fmt: skip
