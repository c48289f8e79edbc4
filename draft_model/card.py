"""The figures of one build, stored as `figures.json` beside the checkpoints, and the model cards made from them.

A card has data, licences, parameters, losses, probes.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import fill

from draft_model.core import Preset, write_atomically
from draft_model.corpus.readers import STDLIB
from draft_model.corpus.store import SourceSummary
from draft_model.data.samples import FIM_SHARE, GENERATED_SHARE
from draft_model.evaluation.held_out import Evaluation, ProbeResult, probe_table
from draft_model.evaluation.report import OfflineFigures

WIDTH = 120
_PURPOSE = {
    "target": "It writes completions: a stand-in that any machine can train, no substitute for a real code model.",
    "draft": "It proposes tokens that the target of the same build accepts or rejects; they share a tokenizer.",
}
_FRONT_MATTER = """---
license: apache-2.0
pipeline_tag: text-generation
tags: [code, fill-in-the-middle, python]
---"""


@dataclass(frozen=True)
class ModelFigures:
    """The figures of one trained model: its size, its training, its quality.

    `active_s` is the training time on `device`; `minutes` is the training budget, None if it was a number of steps.
    """

    preset: Preset
    num_parameters: int
    num_steps: int
    num_tokens: int
    active_s: float
    device: str
    minutes: float | None
    evaluation: Evaluation
    probes: list[ProbeResult]

    @property
    def num_right(self) -> int:
        """Probes with the expected completion."""
        return sum(result.is_right for result in self.probes)


@dataclass(frozen=True)
class BuildFigures:
    """The figures of both models and their corpus.

    `mix` is the target's share in the draft's loss; the target wrote `num_generated` of the draft's completions.
    """

    target: ModelFigures
    draft: ModelFigures
    pair: OfflineFigures
    sources: tuple[SourceSummary, ...]
    num_held_out_files: int
    mix: float
    num_generated: int


def save_figures(figures: BuildFigures, path: Path) -> None:
    """Write the figures as JSON."""
    write_atomically(path, (json.dumps(asdict(figures), indent=1) + "\n").encode())


def render_card(figures: BuildFigures, role: str) -> str:
    """The card of the `target` or the `draft` as Markdown, with the metadata block that model hubs read."""
    model = figures.target if role == "target" else figures.draft
    sections = (
        *_introduction(model, _PURPOSE[role]),
        *_figures(figures, model),
        *_probes(model.probes),
        *_training(model, figures.num_generated if role == "draft" else 0),
        *(_distilled(figures) if role == "draft" else ()),
        *_data(figures),
    )
    return "\n\n".join(sections) + "\n"


def _paragraph(*sentences: str) -> str:
    return fill(" ".join(sentences), WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


_ENVIRONMENT = _paragraph(
    "The standard library alone is about two million tokens, too few for this many parameters, so packages are read",
    "too, from the locked environment and as wheels from the package index. Licences are those that each package's",
    "metadata says; only permissive ones are read. Of torch, transformers and vLLM a part is read. Whole packages are",
    "held out.",
)


def _introduction(model: ModelFigures, purpose: str) -> tuple[str, ...]:
    size = f"{model.num_parameters:,} parameters, a context of {model.preset.shape.context_tokens:,} tokens."
    return (
        _FRONT_MATTER,
        f"# {model.preset.name}",
        _paragraph(purpose, f"Python only, {size}"),
        _paragraph(
            "Prompt: `<|fim_prefix|>` whole lines before the cursor's line, `<|fim_suffix|>` the text right of the",
            "cursor, `<|fim_middle|>` the cursor's line left of the cursor. Each part is tokenised on its own;",
            "nothing is put before the first marker. The completion ends with `<|endoftext|>`.",
        ),
    )


def _figures(figures: BuildFigures, model: ModelFigures) -> tuple[str, ...]:
    held_out, pair = model.evaluation, figures.pair.greedy
    rows = [
        ("parameters", f"{model.num_parameters:,}"),
        ("training tokens", f"{model.num_tokens:,}"),
        ("held-out loss, nats per token", f"{held_out.loss:.3f}"),
        ("held-out bits per byte", f"{held_out.bits_per_byte:.3f}"),
        ("loss inside held-out completions, nats per token", f"{held_out.middle_loss:.3f}"),
        ("first token of a held-out completion right", f"{held_out.first_token_accuracy:.1%} of {held_out.num_splits}"),
        ("probes as expected", f"{model.num_right} of {len(model.probes)}"),
        ("tokens of the target's completions that the draft predicts", f"{pair.agreement:.1%}"),
        ("drafted tokens that are accepted, greedy, K = 4", f"{pair.acceptance_by_length[4]:.1%}"),
    ]
    return (
        "## Figures",
        _paragraph(
            f"Measured once, with the exported weights, on the {figures.num_held_out_files} files of the packages that",
            f"were held out ({held_out.num_tokens:,} tokens). They went through the same cleaning as the training text",
            "(below), so the bits per byte compare with nothing else.",
        ),
        _table(("figure", "value"), rows),
    )


def _probes(results: list[ProbeResult]) -> tuple[str, ...]:
    return (
        "## Twenty probes",
        _paragraph(
            "Easily predictable cursors, completed greedily with the lines around them; ⏎ is a line end. A probe is",
            "right when the completion begins as any Python programmer would expect; the rest of it is not judged.",
        ),
        probe_table(results),
    )


def _training(model: ModelFigures, num_generated: int) -> tuple[str, ...]:
    written = "samples of human-written text" if num_generated else "samples"
    shape, settings = model.preset.shape, model.preset.train
    return (
        "## Training",
        _paragraph(
            f"Llama architecture: {shape.num_layers} layers of {shape.hidden_size}, {shape.num_heads} heads of",
            f"{shape.head_dim}, feed-forward {shape.intermediate_size}, tied embeddings, a vocabulary of",
            f"{shape.vocab_size:,} (byte-level BPE learnt from the same corpus).",
        ),
        _paragraph(
            f"{model.num_tokens:,} tokens in {model.num_steps:,} steps, {model.active_s / 60:.0f} active minutes on",
            f"{model.device}. Muon ({settings.muon_lr:g}) for the matrices in the layers, AdamW",
            f"({settings.adam_lr:g}) for embedding and norms, bfloat16 autocast, decay to zero over the last",
            f"{1 - settings.decay_from:.0%} of the budget. {FIM_SHARE:.0%} of the {written} are fill-in-the-middle,",
            "cut at any character; most others are plain text tokenised in pieces cut at random characters, so that",
            "the model knows words from their beginnings. The loss is over every token.",
        ),
        _paragraph("Made by the steps of `draft-model build-embedded`.", _budget(model)),
    )


def _budget(model: ModelFigures) -> str:
    if model.minutes is None:
        return f"The budget was {model.num_steps:,} steps."
    return (
        f"The budget was {model.minutes:g} minutes, which end where the machine's speed puts it: a rerun gives a model "
        "like this one, not the same one."
    )


def _distilled(figures: BuildFigures) -> tuple[str, ...]:
    """The paragraph on the draft's training from its target."""
    layers = f"{figures.draft.preset.shape.num_layers} of its {figures.target.preset.shape.num_layers} layers."
    mix = f"{figures.mix:.0%} of its loss is the divergence from the target's distribution (forward KL)."
    cursors = f"{figures.num_generated:,} cursors."
    generated = f"{GENERATED_SHARE:.0%} of its samples have text that the target generated at {cursors}"
    said = ["It began with the target's embedding and", layers]
    return (_paragraph(*said, *([mix] if figures.mix else []), *([generated] if figures.num_generated else [])),)


def _data(figures: BuildFigures) -> tuple[str, ...]:
    total_mb = sum(entry.num_bytes for entry in figures.sources) / 1e6
    rows = [
        (
            entry.name, entry.version, entry.licence, entry.side.replace("_", "-"), str(entry.num_files),
            f"{entry.num_bytes / 1e6:.2f}",
        )
        for entry in figures.sources
    ]  # fmt: skip
    return (
        "## Data and licences",
        _paragraph(
            f"{total_mb:.1f} MB, without tests, generated files, tables, vendored copies and near copies; licence",
            "headers are dropped and docstrings of more than six lines cut to their first paragraph.",
        ),
        *([_ENVIRONMENT] if any(entry.name == STDLIB for entry in figures.sources) else []),
        _table(("source", "version", "licence", "side", "files", "MB"), rows),
        _paragraph(
            "The weights are under this project's licence. A model of this size can still repeat short passages of",
            "its training data.",
        ),
    )
