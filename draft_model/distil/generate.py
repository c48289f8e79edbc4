"""What a target writes at cursors of the corpus: the text that its draft will have to foretell.

A draft that learns the corpus learns what people wrote; one that learns this learns what its target writes. vLLM makes
it, the prompts are those of the server.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from draft_model.data.fim import Split, split_at_random
from draft_model.data.generated import Chunks
from draft_model.data.layouts import LayoutEncoder
from draft_model.data.samples import CorpusText
from draft_model.engine import Engine, open_engine
from draft_model.errors import PipelineError
from draft_model.files import weights_digest

CHUNK = 1_000
"""Cursors that are completed before what was written is kept."""
WINDOW_CHARS = (300, 2400)


@dataclass(frozen=True)
class Generation:
    """How the target writes."""

    max_tokens: int
    temperature: float
    seed: int


def draw_cursors(texts: Sequence[str], encoder: LayoutEncoder, num_cursors: int, seed: int) -> list[Split]:
    """Places in the texts, spread evenly, each with what stands around it."""
    plain = [text for text in texts if not encoder.holds_marker(text)]
    corpus, rng = CorpusText(plain), Random(seed)
    windows = (corpus.window(rng.random(), rng.randint(*WINDOW_CHARS)) for _ in range(num_cursors))
    only_line = encoder.layout.is_typed_line_only
    return [split_at_random(text, rng, is_typed_line_only=only_line) for text in windows if text.strip()]


def generate(
    target: Path, encoder: LayoutEncoder, cursors: Sequence[Split], generation: Generation, out: Path, *,
    options: Mapping[str, Any] | None = None, on_done: Callable[[int, int], None] = lambda done, total: None,
) -> int:  # fmt: skip
    """Keep the cursors with the target's completions in place of people's in the file `out`; return how many they are.

    Cursors whose prompt leaves no room for a completion are left out, and those where it came out empty. `options` are
    vLLM's own settings. Interrupted, the same call goes on behind the last chunk that was finished. Raises
    PipelineError when nothing was written at any cursor, when `out` was begun with something else, or as `open_engine`.
    """
    chunks = [cursors[start : start + CHUNK] for start in range(0, len(cursors), CHUNK)]
    kept = Chunks(out, _made_of(target, cursors, generation))
    missing = kept.missing(len(chunks))
    on_done(len(chunks) - len(missing), len(chunks))
    if missing:
        with open_engine(target, options=options) as engine:
            for number in missing:
                seeded = replace(generation, seed=generation.seed + number * CHUNK)
                kept.write(number, _complete(engine, encoder, chunks[number], seeded))
                on_done(number + 1, len(chunks))
    num_written = kept.join(len(chunks))
    if not num_written:
        raise PipelineError(
            f"{target} wrote nothing at {len(cursors):,} cursors: either it ends at once, or none leaves room for "
            f"{generation.max_tokens} tokens in its context"
        )
    return num_written


def _complete(engine: Engine, encoder: LayoutEncoder, cursors: Sequence[Split], generation: Generation) -> list[Split]:
    prompts = [encoder.encode_prompt(cursor.before, cursor.typed, cursor.after) for cursor in cursors]
    most = engine.context_tokens - generation.max_tokens
    fitting = [(cursor, prompt) for cursor, prompt in zip(cursors, prompts, strict=True) if len(prompt) <= most]
    outputs = engine.complete(
        [prompt for _, prompt in fitting],
        max_tokens=generation.max_tokens, temperature=generation.temperature, seed=generation.seed,
        stops=encoder.stops,
    )  # fmt: skip
    written = ((encoder.decode(output.ids), output.is_whole) for output in outputs)
    return [
        replace(cursor, completion=text, is_whole=is_whole)
        for (cursor, _), (text, is_whole) in zip(fitting, written, strict=True)
        if text
    ]


def _made_of(target: Path, cursors: Sequence[Split], generation: Generation) -> str:
    parts = (weights_digest(target), generation, tuple(cursors))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
