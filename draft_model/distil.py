"""Lets a target complete cursors of the corpus in vLLM: the text that its draft must predict.

The corpus teaches a draft human-written code; these completions teach it the output of its target. The prompts are the
server's.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from draft_model.core import PipelineError, file_digest, weights_digest
from draft_model.corpus.store import Corpus, Side
from draft_model.data.fim import Split, is_made_of, load_splits, resumed_lines, split_at_random
from draft_model.data.samples import CorpusText
from draft_model.data.tokenizer import TemplateEncoder
from draft_model.models import GeneratedTokens, OfflineEngine, open_engine

CHUNK = 1_000
"""Cursors that are completed together and then stored."""
MAX_SEQS = 32
"""Sequences that are completed together, unless the options say otherwise."""
WINDOW_CHARS = (300, 2400)


@dataclass(frozen=True)
class GenerationSettings:
    """Length, temperature and seed of the completions."""

    max_tokens: int
    temperature: float
    seed: int


def draw_cursors(corpus: Corpus, encoder: TemplateEncoder, num_cursors: int, seed: int) -> list[Split]:
    """Cursors spread evenly over the training texts, each with the text around it; one part is in memory at a time.

    Raises PipelineError when there is no training text.
    """
    numbers, rng = corpus.parts(Side.TRAIN), Random(seed)
    if not numbers:
        raise PipelineError(f"the corpus in {corpus.folder} has no training text")
    drawn: list[Split] = []
    for done, number in enumerate(numbers):
        texts = [text for text in corpus.texts(Side.TRAIN, number) if not encoder.holds_marker(text)]
        some = num_cursors * (done + 1) // len(numbers) - num_cursors * done // len(numbers)
        if texts:
            drawn += _cursors_in(texts, encoder, some, rng)
    return drawn


def _cursors_in(texts: Sequence[str], encoder: TemplateEncoder, num_cursors: int, rng: Random) -> list[Split]:
    corpus = CorpusText(texts)
    windows = (corpus.window(rng.random(), rng.randint(*WINDOW_CHARS)) for _ in range(num_cursors))
    lines_behind = encoder.template.lines_behind
    return [split_at_random(text, rng, lines_behind=lines_behind) for text in windows if text.strip()]


def generate(
    target: Path, encoder: TemplateEncoder, cursors: Sequence[Split], generation: GenerationSettings, out: Path, *,
    options: Mapping[str, Any] | None = None, on_done: Callable[[int, int], None] = lambda done, total: None,
) -> int:  # fmt: skip
    """Write the cursors with the target's completions to the file `out`; return their number.

    Cursors are left out if the prompt leaves no room for a completion, or the completion is empty. `options` are vLLM's
    own settings. After an interruption the same call continues behind the last finished chunk; a file `out` of the same
    sources is kept. Raises PipelineError when all completions are empty, when another process writes `out`, or as
    `open_engine`.
    """
    settings = {"max_num_seqs": MAX_SEQS, **(options or {})}
    made_of = _made_of(target, encoder, cursors, generation, settings)
    if not is_made_of(out, made_of):
        with resumed_lines(out, made_of) as (file, done), ExitStack() as stack:
            on_done(done, len(cursors))
            engine = stack.enter_context(open_engine(target, options=settings)) if done < len(cursors) else None
            while engine is not None and done < len(cursors):
                seeded = replace(generation, seed=generation.seed + done)
                splits = _complete(engine, encoder, cursors[done : done + CHUNK], seeded)
                file.writelines(json.dumps(asdict(split)).encode() + b"\n" for split in splits)
                file.flush()
                done += len(splits)
                on_done(done, len(cursors))
    try:
        return len(load_splits(out))
    except PipelineError as error:
        raise PipelineError(
            f"{target} wrote nothing at {len(cursors):,} cursors: either it ends at once, or none leaves room for "
            f"{generation.max_tokens} tokens in its context"
        ) from error


def _complete(
    engine: OfflineEngine, encoder: TemplateEncoder, cursors: Sequence[Split], generation: GenerationSettings
) -> list[Split]:
    """The cursors with their completions, "" where the prompt leaves no room."""
    prompts = [encoder.encode_prompt(cursor.before, cursor.typed, cursor.after) for cursor in cursors]
    most = engine.context_tokens - generation.max_tokens
    outputs = iter(
        engine.complete(
            [prompt for prompt in prompts if len(prompt) <= most],
            max_tokens=generation.max_tokens, temperature=generation.temperature, seed=generation.seed,
            stops=encoder.stops,
        )
    )  # fmt: skip
    written = [next(outputs) if len(prompt) <= most else GeneratedTokens([]) for prompt in prompts]
    return [
        replace(cursor, completion=encoder.decode(output.ids), is_whole=output.stop is not None)
        for cursor, output in zip(cursors, written, strict=True)
    ]


def _made_of(
    target: Path, encoder: TemplateEncoder, cursors: Sequence[Split], generation: GenerationSettings,
    settings: Mapping[str, Any],
) -> str:  # fmt: skip
    """A digest of all that the completions depend on."""
    sources = (weights_digest(target), file_digest(target / "tokenizer.json"), encoder.template, generation)
    parts = map(repr, (*sources, sorted(settings.items()), *cursors))
    return hashlib.sha256("".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
