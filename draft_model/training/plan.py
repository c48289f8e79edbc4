"""Estimates days, GPU hours, cost and memory of a training run from a utilisation."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from draft_model.core import PipelineError, Preset
from draft_model.training.run import METRICS, read_metrics
from draft_model.training.world import GPUS

DEFAULT_UTILISATION = 0.35
"""A cautious guess for FSDP2 in bfloat16 without tuning; `train` prints the measured one."""
BYTES_PER_MATRIX_PARAMETER = 4 + 4 + 4 + 2
"""Weight, gradient and Muon's momentum in float32, and the bfloat16 copy for computing."""
BYTES_PER_OTHER_PARAMETER = 4 + 4 + 8 + 2
"""The same with AdamW's two moments."""
BYTES_PER_TEACHER_PARAMETER = 2
"""Bfloat16, sharded over the GPUs like the draft."""
TEACHER_FLOPS_PER_PARAMETER = 2
"""Operations per parameter and token of a forward pass, a third of training's six; attention is not counted."""
SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True)
class Utilisation:
    """The share of the GPUs' peak that goes into the models, 0 to 1, and the source of that figure.

    `has_teacher` means that the measured run distilled. `train` counts the draft's operations only, so the teacher's
    time lowers that share.
    """

    share: float
    source: str
    has_teacher: bool = False


ASSUMED = Utilisation(DEFAULT_UTILISATION, "assumed")


@dataclass(frozen=True)
class TrainingPlan:
    """The estimate. Operations include the teacher's; memory is that of weights, optimiser and teacher on each GPU.

    Activations take memory on top.
    """

    num_parameters: int
    num_teacher_parameters: int
    flops: float
    teacher_flops: float
    utilisation: float
    utilisation_source: str
    tokens_per_s: float
    days: float
    gpu_hours: float
    dollars: float
    state_gib_per_gpu: float
    gib_per_gpu: int


def measured_utilisation(run: Path) -> Utilisation:
    """The median over a run's steps with a utilisation; PipelineError when there are none or the median is above 1."""
    if not run.is_dir():
        raise PipelineError(f"there is no run in {run}: it is no folder")
    steps = read_metrics(run)
    shares = [share for step in steps if (share := step.get("utilisation", 0.0)) > 0.0]
    if not shares:
        raise PipelineError(f"{run / METRICS}: no step with a utilisation above 0 among {len(steps)}")
    share = median(shares)
    if share > 1.0:
        raise PipelineError(f"{run / METRICS}: the median utilisation must be at most 1, it is {share:.3g}")
    # Without a teacher the divergence is 0 exactly.
    has_teacher = any(step.get("divergence", 0.0) != 0.0 for step in steps)
    source = f"measured in {run}" + (", its teacher's time included" if has_teacher else "")
    return Utilisation(share, source, has_teacher)


def make_plan(
    preset: Preset, num_tokens: float, gpu: str, num_gpus: int, utilisation: Utilisation = ASSUMED,
    dollars_per_hour: float | None = None, num_teacher_parameters: int = 0,
) -> TrainingPlan:  # fmt: skip
    """The plan for training `preset` on `num_tokens`; with a teacher if `num_teacher_parameters` is above 0.

    PipelineError for a GPU that is not in the table, no tokens, or a teacher that would count twice.
    """
    if gpu not in GPUS:
        raise PipelineError(f"no figures for the GPU {gpu!r}; there are: {', '.join(sorted(GPUS))}")
    if num_tokens <= 0:
        raise PipelineError(f"tokens: must be above 0, not {num_tokens:g}")
    if num_teacher_parameters < 0:
        raise PipelineError(f"teacher parameters: must be 0 or more, not {num_teacher_parameters:,}")
    if num_teacher_parameters and utilisation.has_teacher:
        raise PipelineError(
            f"teacher parameters: must be 0 with a utilisation {utilisation.source}, not {num_teacher_parameters:,}: "
            "the teacher would count twice"
        )
    shape = preset.shape
    teacher_flops = num_tokens * float(TEACHER_FLOPS_PER_PARAMETER * num_teacher_parameters)
    flops = num_tokens * shape.flops_per_token(shape.context_tokens) + teacher_flops
    seconds = flops / (num_gpus * GPUS[gpu].peak_flops * utilisation.share)
    hours = seconds / 3600 * num_gpus
    price = GPUS[gpu].dollars if dollars_per_hour is None else dollars_per_hour
    others = shape.num_parameters - shape.num_matrix_parameters
    state = shape.num_matrix_parameters * BYTES_PER_MATRIX_PARAMETER + others * BYTES_PER_OTHER_PARAMETER
    state += num_teacher_parameters * BYTES_PER_TEACHER_PARAMETER
    return TrainingPlan(
        shape.num_parameters, num_teacher_parameters, flops, teacher_flops, utilisation.share, utilisation.source,
        num_tokens / seconds, seconds / SECONDS_PER_DAY, hours, hours * price, state / num_gpus / 2**30, GPUS[gpu].gib,
    )  # fmt: skip


def describe_plan(plan: TrainingPlan) -> str:
    """The plan in a few lines."""
    teacher = f"a teacher of {plan.num_teacher_parameters / 1e9:.2f}B parameters"
    of_teacher = f", {plan.teacher_flops:.2e} of them in {teacher}" if plan.num_teacher_parameters else ""
    held = "weights, optimiser and teacher" if plan.num_teacher_parameters else "weights and optimiser"
    return (
        f"{plan.num_parameters / 1e9:.2f}B parameters, {plan.flops:.2e} operations{of_teacher}\n"
        f"{plan.tokens_per_s:,.0f} tokens/s at {plan.utilisation:.1%} of the peak ({plan.utilisation_source})\n"
        f"{plan.days:.1f} days, {plan.gpu_hours:,.0f} GPU hours, about ${plan.dollars:,.0f}\n"
        f"{plan.state_gib_per_gpu:.1f} of {plan.gib_per_gpu} GiB a GPU for {held}, "
        "the rest for activations"
    )
