"""What INT8 costs and what it gives: the same measurements on several models, side by side."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from target_model.errors import EvaluationError
from target_model.prompts import build_prompts
from target_model.quantise import weight_files
from target_model.scoring import Score, Share, score
from target_model.served import ServedModel, Speed, serving
from target_model.tasks import Task, only_function, only_line

ROW_TOKENS = 512
LINE_TOKENS = 48
FUNCTION_TOKENS = 256


@dataclass(frozen=True)
class Material:
    """What is measured on; each part may be missing."""

    functions: Sequence[Task] = ()
    """HumanEval: a function is missing."""
    lines: Sequence[Task] = ()
    """Single-line infilling: a line is missing."""
    texts: Sequence[str] = ()
    """Held-out code, for the loss."""


@dataclass(frozen=True)
class TargetFigures:
    """What one model reaches; None where nothing was given to measure it on."""

    name: str
    weight_bytes: int
    memory_bytes: int
    speed: Speed
    loss: float | None
    bits_per_byte: float | None
    functions: Score | None
    lines: Score | None


def read_texts(path: Path) -> list[str]:
    """The texts of a file, JSON lines or Parquet with a column `text`; EvaluationError when none."""
    try:
        texts = _read_parquet(path) if path.suffix == ".parquet" else _read_lines(path)
    except (OSError, ValueError, KeyError) as error:
        raise EvaluationError(f"{path} has no texts that can be read: {error}") from error
    if not texts:
        raise EvaluationError(f"{path} has no texts")
    return texts


def measure(
    name: str, model: Path, material: Material,
    serve: Callable[[Path], AbstractContextManager[ServedModel]] = serving,
) -> TargetFigures:  # fmt: skip
    """Measure one model. Raises EvaluationError when the server builds no prompts for it, QuantiseError when it is no
    model.
    """
    weight_bytes = sum(file.stat().st_size for file in weight_files(model))
    prompts = {id(tasks): build_prompts(model, tasks) for tasks in (material.functions, material.lines) if tasks}
    with serve(model) as served:
        timed = next(iter(prompts.values()), None) or [served.encode("def main():\n")]
        speed, memory = served.time(timed), served.memory_bytes()
        loss, bits = _losses(served, material.texts) if material.texts else (None, None)
        written = {
            "functions": _complete(served, material.functions, prompts, FUNCTION_TOKENS),
            "lines": _complete(served, material.lines, prompts, LINE_TOKENS),
        }
    functions = [only_function(text) for text in written["functions"]]
    lines = [only_line(text) for text in written["lines"]]
    return TargetFigures(
        name, weight_bytes, memory, speed, loss, bits,
        score(material.functions, functions) if functions else None,
        score(material.lines, lines) if lines else None,
    )  # fmt: skip


def _complete(
    served: ServedModel, tasks: Sequence[Task], prompts: Mapping[int, list[list[int]]], max_tokens: int
) -> list[str]:
    return served.complete(prompts[id(tasks)], max_tokens) if tasks else []


def _losses(served: ServedModel, texts: Sequence[str]) -> tuple[float, float]:
    """Nats a token, and bits a byte, over texts cut into rows; each row's first token is given."""
    rows, num_bytes = [], 0
    for text in texts:
        ids = served.encode(text)
        rows += [ids[at : at + ROW_TOKENS] for at in range(0, len(ids) - 1, ROW_TOKENS)]
        num_bytes += len(text.encode())
    rows = [row for row in rows if len(row) > 1]
    nats = sum(served.losses(rows))
    return nats / sum(len(row) - 1 for row in rows), nats / math.log(2) / num_bytes


def _read_lines(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _read_parquet(path: Path) -> list[str]:
    import pyarrow.parquet  # type: ignore[import-untyped]  # takes a while to import

    texts: list[str] = pyarrow.parquet.read_table(path, columns=["text"])["text"].to_pylist()
    return texts


def render(found: Sequence[TargetFigures]) -> str:
    """All models side by side, in Markdown."""
    rows: list[tuple[str, Callable[[TargetFigures], str]]] = [
        ("weights, MiB", lambda one: f"{one.weight_bytes / 2**20:.1f}"),
        ("memory of the engine, MiB", lambda one: f"{one.memory_bytes / 2**20:.0f}"),
        ("TTFT alone, ms", lambda one: f"{one.speed.ttft_ms:.1f}"),
        ("tokens/s alone", lambda one: f"{one.speed.tokens_per_s:.0f}"),
        ("tokens/s together", lambda one: f"{one.speed.tokens_per_s_together:.0f}"),
        ("held-out loss, nats a token", lambda one: _number(one.loss)),
        ("held-out bits per byte", lambda one: _number(one.bits_per_byte)),
        ("HumanEval pass@1", lambda one: _share(one.functions.passed if one.functions else None)),
        ("single line, exact", lambda one: _share(one.lines.exact if one.lines else None)),
        ("single line, pass@1", lambda one: _share(one.lines.passed if one.lines else None)),
    ]
    head = f"| figure | {' | '.join(one.name for one in found)} |"
    lines = [f"| {name} | {' | '.join(tell(one) for one in found)} |" for name, tell in rows]
    return "\n".join([head, "| --- |" + " --- |" * len(found), *lines, "", "In brackets: 95% intervals (Wilson).", ""])


def to_json(found: Sequence[TargetFigures]) -> str:
    """The same as JSON."""
    return json.dumps([asdict(one) for one in found], indent=1) + "\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _share(share: Share | None) -> str:
    return "-" if share is None else str(share)
