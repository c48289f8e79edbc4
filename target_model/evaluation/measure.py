"""Measures several models in the same way; their figures stand side by side, as Markdown and JSON."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from target_model.core import EvaluationError
from target_model.evaluation.scoring import Mean, Score, Share, mean_per_unit, score
from target_model.evaluation.served import ServedModel, Speed, serving
from target_model.evaluation.tasks import Task, build_prompts, file_marker, only_function, only_line
from target_model.quantisation.quantise import weight_files
from target_model.sandbox.runner import Limits

_NOTE = (
    "In brackets: 95% intervals, of shares Wilson's as if other problems had been drawn, of losses as if other files "
    "had; the difference is taken file by file."
)
ROW_TOKENS = 512
LINE_TOKENS = 48
FUNCTION_TOKENS = 256


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


@dataclass(frozen=True)
class Material:
    """The tasks and texts to measure on; each part may be missing."""

    functions: Sequence[Task] = ()
    """HumanEval: tasks with a missing function."""
    lines: Sequence[Task] = ()
    """Single-line infilling: tasks with a missing line."""
    texts: Sequence[str] = ()
    """Held-out code, for the loss."""


@dataclass(frozen=True)
class TextLosses:
    """The summed loss of each text in nats, and its tokens."""

    nats: tuple[float, ...]
    num_tokens: tuple[int, ...]
    num_bytes: int

    @property
    def per_token(self) -> Mean:
        """Nats a token."""
        return mean_per_unit(self.nats, self.num_tokens)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the texts."""
        return sum(self.nats) / math.log(2) / self.num_bytes

    def more_than(self, other: "TextLosses | None") -> Mean | None:
        """Nats a token more than `other`'s; None without another, or if its tokens differ."""
        if other is None or other.num_tokens != self.num_tokens:
            return None
        return mean_per_unit([a - b for a, b in zip(self.nats, other.nats, strict=True)], self.num_tokens)


def measure_all(
    models: Sequence[tuple[str, Path]], material: Material, on_begin: Callable[[str], None],
    serve: Callable[[Path], AbstractContextManager[ServedModel]] = serving, limits: Limits | None = None,
) -> Iterator[TargetFigures]:  # fmt: skip
    """Measure named models one after another; yields the figures of each when it is done.

    `limits` are for the programs that they write. Raises EvaluationError when the server builds no prompts for a model,
    vLLM does not start on it, all texts are empty or programs can't be confined, QuantiseError when it is no model.
    """
    first: TextLosses | None = None
    for name, model in models:
        on_begin(name)
        figures, losses = _measure(name, model, material, serve, limits)
        yield replace(figures, loss_more=losses.more_than(first)) if losses else figures
        first = first or losses


def _measure(
    name: str,
    model: Path,
    material: Material,
    serve: Callable[[Path], AbstractContextManager[ServedModel]],
    limits: Limits | None,
) -> tuple[TargetFigures, TextLosses | None]:
    weight_bytes = sum(file.stat().st_size for file in weight_files(model))
    of_functions, of_lines = (
        build_prompts(model, tasks) if tasks else None for tasks in (material.functions, material.lines)
    )
    marker = file_marker(model) if material.texts else ""
    with serve(model) as served:
        some = of_functions or of_lines
        timed = some.token_ids if some else [served.encode("def main():\n")]
        speed, memory = served.time(timed), served.memory_bytes()
        losses = _losses(served, material.texts, marker) if material.texts else None
        functions = served.complete(of_functions, FUNCTION_TOKENS) if of_functions else []
        lines = served.complete(of_lines, LINE_TOKENS) if of_lines else []
    figures = TargetFigures(
        name=name, weight_bytes=weight_bytes, memory_bytes=memory, speed=speed,
        loss=losses.per_token if losses else None,
        loss_more=None,
        bits_per_byte=losses.bits_per_byte if losses else None,
        functions=score(material.functions, [only_function(text) for text in functions], limits) if functions else None,
        lines=score(material.lines, [only_line(text) for text in lines], limits) if lines else None,
    )  # fmt: skip
    return figures, losses


def _losses(served: ServedModel, texts: Sequence[str], marker: str) -> TextLosses:
    """Losses of texts, cut into rows that each open as a file; EvaluationError when all texts are empty."""
    opening = served.opening(marker)
    rows: list[Sequence[int]] = []
    of_text: list[int] = []
    for number, text in enumerate(texts):
        ids = served.encode(text)
        rows += [[*opening, *ids[at : at + ROW_TOKENS]] for at in range(0, len(ids), ROW_TOKENS)]
        of_text += [number] * (len(rows) - len(of_text))
    if not rows:
        raise EvaluationError("the held-out texts are empty: there is nothing to predict")
    nats, num_tokens = [0.0] * len(texts), [0] * len(texts)
    for number, row, loss in zip(of_text, rows, served.losses(rows), strict=True):
        nats[number] += loss
        num_tokens[number] += len(row) - 1
    return TextLosses(tuple(nats), tuple(num_tokens), sum(len(text.encode()) for text in texts))
