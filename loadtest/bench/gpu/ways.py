"""The engines that are compared: five ways to run a draft model, and one engine without. Pure."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
WORKER_EXTENSION = "completion_server.engine.vllm.drafts.worker.WorkerExtension"
"""As in the server's engine; it makes K = 0 cheap on the older runner."""

_SCHEDULE = "num_speculative_tokens_per_batch_size"
_ON_A_GPU = ("full graphs alone", "newer runner")


@dataclass(frozen=True, slots=True)
class Size:
    """What depends on the machine: a GPU, or a CPU to try the program on."""

    is_tiny: bool = False

    @property
    def common_args(self) -> dict[str, Any]:
        """Arguments of every engine."""
        args = {"load_format": "dummy", "skip_tokenizer_init": True, "generation_config": "vllm"}
        own = {"enforce_eager": True} if self.is_tiny else {"performance_mode": "interactivity"}
        return args | own | {"enable_prefix_caching": False}


@dataclass(frozen=True, slots=True)
class EngineVariant:
    """An engine to measure."""

    name: str
    args: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict)
    """Variables of this engine alone."""
    live_ks: tuple[int, ...] = ()
    """The Ks to measure on an engine whose K changes; empty for an engine whose K is constant."""


def acceptance_by_position(acceptance: float, k: int) -> list[float]:
    """Return, for each position, the share of drafts that are accepted up to it."""
    return [acceptance**position for position in range(1, k + 1)]


def ways(
    target: Path, draft: Path, k: int, acceptance: float, max_num_seqs: int, size: Size
) -> tuple[EngineVariant, ...]:
    """Return the engines, that without a draft first; it has vLLM's own choice of runner, the newer one.

    The newer runner has full graphs only for a K that the schedule names, so one row names 0; the live K replaces all
    rows. A trial on a CPU, which has neither, leaves out this runner, graphs alone and synthetic acceptance.
    """
    common = size.common_args | {"model": str(target), "max_model_len": 1024, "max_num_seqs": max_num_seqs}
    if not size.is_tiny:
        common["gpu_memory_utilization"] = 0.18  # 25 GB of an H200: 15 of weights, the rest KV cache and graphs
    drafts: dict[str, Any] = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": k}
    if not size.is_tiny:
        rates = acceptance_by_position(acceptance, k)
        drafts |= {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    constant = common | {"speculative_config": drafts}
    scheduled = common | {"speculative_config": drafts | {_SCHEDULE: [[1, max_num_seqs, k]]}}
    rows = [[1, max_num_seqs - 1, k], [max_num_seqs, max_num_seqs, 0]]
    named = common | {"speculative_config": drafts | {_SCHEDULE: rows}}
    only_full = {"compilation_config": {"cudagraph_mode": "FULL"}}
    live = {"worker_extension_cls": WORKER_EXTENSION}
    found = [
        EngineVariant("no draft", common),
        EngineVariant("schedule", scheduled | live, {RUNNER: "0"}, (k, 0)),
        EngineVariant("fixed", constant, {RUNNER: "0"}),
        EngineVariant("full graphs", constant | live, {RUNNER: "0"}, (k, 0)),
        EngineVariant("full graphs alone", constant | live | only_full, {RUNNER: "0"}, (k, 0)),
        EngineVariant("newer runner", named, {RUNNER: "1"}, (k, 0)),
    ]
    return tuple(way for way in found if not (size.is_tiny and way.name in _ON_A_GPU))
