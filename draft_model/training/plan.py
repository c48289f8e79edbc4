"""What a training run would take: days, GPU hours, cost and memory, from a utilisation that was measured."""

from dataclasses import dataclass

from draft_model.errors import PipelineError
from draft_model.presets import Preset
from draft_model.training.flops import PEAK_FLOPS, flops_per_token

DEFAULT_UTILISATION = 0.35
"""A cautious guess for FSDP2 in bfloat16 without tuning; `train` prints the measured one."""
GPU_GIB = {"a100": 80, "h100": 80, "h200": 141, "b200": 192, "l40s": 48, "a10": 24, "mi300x": 192}
DOLLARS_PER_HOUR = {"a100": 1.8, "h100": 2.9, "h200": 3.6, "b200": 5.5, "l40s": 1.0, "a10": 0.7, "mi300x": 3.0}
"""Rough on-demand prices of one GPU; give your own."""
BYTES_PER_MATRIX_PARAMETER = 4 + 4 + 4 + 2
"""Weight, gradient and Muon's momentum in float32, and the bfloat16 copy that is computed with."""
BYTES_PER_OTHER_PARAMETER = 4 + 4 + 8 + 2
"""The same with AdamW's two moments."""
SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class Plan:
    """The outcome; memory is that of weights and optimiser on each GPU, activations come on top."""

    num_parameters: int
    flops: float
    tokens_per_s: float
    days: float
    gpu_hours: float
    dollars: float
    state_gib_per_gpu: float
    gib_per_gpu: int


def make_plan(
    preset: Preset,
    num_tokens: float,
    gpu: str,
    num_gpus: int,
    utilisation: float = DEFAULT_UTILISATION,
    dollars_per_hour: float | None = None,
) -> Plan:
    """The plan for training `preset` on `num_tokens`; PipelineError for a GPU that is not in the table."""
    if gpu not in PEAK_FLOPS:
        raise PipelineError(f"no figures for the GPU {gpu!r}; there are: {', '.join(sorted(PEAK_FLOPS))}")
    shape = preset.shape
    flops = num_tokens * flops_per_token(shape, shape.context_tokens)
    seconds = flops / (num_gpus * PEAK_FLOPS[gpu] * utilisation)
    hours = seconds / 3600 * num_gpus
    price = DOLLARS_PER_HOUR[gpu] if dollars_per_hour is None else dollars_per_hour
    others = shape.num_parameters - shape.num_matrix_parameters
    state = shape.num_matrix_parameters * BYTES_PER_MATRIX_PARAMETER + others * BYTES_PER_OTHER_PARAMETER
    return Plan(
        shape.num_parameters, flops, num_tokens / seconds, seconds / SECONDS_PER_DAY, hours, hours * price,
        state / num_gpus / 2**30, GPU_GIB[gpu],
    )  # fmt: skip


def describe_plan(plan: Plan, utilisation: float) -> str:
    """The plan in a few lines."""
    return (
        f"{plan.num_parameters / 1e9:.2f}B parameters, {plan.flops:.2e} operations\n"
        f"{plan.tokens_per_s:,.0f} tokens/s at {utilisation:.0%} of the peak\n"
        f"{plan.days:.1f} days, {plan.gpu_hours:,.0f} GPU hours, about ${plan.dollars:,.0f}\n"
        f"{plan.state_gib_per_gpu:.1f} of {plan.gib_per_gpu} GiB a GPU for weights and optimiser, "
        "the rest for activations"
    )
