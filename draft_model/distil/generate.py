"""What a target writes at cursors of the corpus: the text that its draft will have to foretell.

A draft that learns the corpus learns what people wrote; one that learns this learns what its target writes. vLLM makes
it, the prompts are those of the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from draft_model.data.fim import Split, split_at_random
from draft_model.data.layouts import LayoutEncoder
from draft_model.data.samples import CorpusText
from draft_model.engine import open_engine

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


def generate_splits(
    target: Path, encoder: LayoutEncoder, cursors: Sequence[Split], generation: Generation
) -> list[Split]:
    """The cursors with the target's completions in place of people's.

    Those whose prompt leaves no room for a completion are left out, and those where it came out empty.
    """
    prompts = [encoder.encode_prompt(cursor.before, cursor.typed, cursor.after) for cursor in cursors]
    with open_engine(target) as engine:
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
