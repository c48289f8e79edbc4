"""The figures of one model, and several models side by side as Markdown and JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from target_model.evaluation.scoring import Mean, Score, Share
from target_model.evaluation.served import Speed


@dataclass(frozen=True)
class TargetFigures:
    """The figures of one model; None for those without material to measure on."""

    name: str
    weight_bytes: int
    memory_bytes: int
    speed: Speed
    loss: Mean | None
    """Nats a token of held-out code."""
    loss_more: Mean | None
    """The loss less the first model's, text by text; None for the first, and for another tokenizer."""
    bits_per_byte: float | None
    functions: Score | None
    lines: Score | None


_NOTE = (
    "In brackets: 95% intervals, of shares Wilson's as if other problems had been drawn, of losses as if other files "
    "had; the difference is taken file by file."
)


def render(found: Sequence[TargetFigures]) -> str:
    """All models side by side, in Markdown."""
    rows: list[tuple[str, Callable[[TargetFigures], str]]] = [
        ("weights, MiB", lambda one: f"{one.weight_bytes / 2**20:.1f}"),
        ("memory of the engine, MiB", lambda one: f"{one.memory_bytes / 2**20:.0f}"),
        ("TTFT alone, ms", lambda one: f"{one.speed.ttft_ms:.1f}"),
        ("tokens/s alone", lambda one: f"{one.speed.tokens_per_s:.0f}"),
        ("tokens/s together", lambda one: f"{one.speed.tokens_per_s_together:.0f}"),
        ("held-out loss, nats a token", lambda one: str(one.loss or "-")),
        ("more than the first model's", lambda one: str(one.loss_more or "-")),
        ("held-out bits per byte", lambda one: "-" if one.bits_per_byte is None else f"{one.bits_per_byte:.4f}"),
        ("HumanEval pass@1", lambda one: _share(one.functions.passed if one.functions else None)),
        ("single line, exact", lambda one: _share(one.lines.exact if one.lines else None)),
        ("single line, pass@1", lambda one: _share(one.lines.passed if one.lines else None)),
    ]
    head = f"| figure | {' | '.join(one.name for one in found)} |"
    lines = [f"| {name} | {' | '.join(tell(one) for one in found)} |" for name, tell in rows]
    return "\n".join([head, "| --- |" + " --- |" * len(found), *lines, "", _NOTE, ""])


def to_json(found: Sequence[TargetFigures]) -> str:
    """All models as JSON."""
    return json.dumps([asdict(one) for one in found], indent=1) + "\n"


def _share(share: Share | None) -> str:
    return "-" if share is None else str(share)
