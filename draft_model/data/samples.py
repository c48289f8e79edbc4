"""Makes rows of tokens: windows of source files, most split for fill-in-the-middle, packed without padding.

Windows start at places spread evenly over the texts (a golden-ratio sequence), and every visit draws a new split.

A share of the splits has pieces of files of the same folder in front, like the snippets that an editor sends.

Samples packed in a row can attend to the ones before them. That is harmless here: positions are relative, every sample
opens with a marker, and the model soon learns to ignore the unrelated text before it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import PurePosixPath
from random import Random
from urllib.parse import quote

import numpy as np

from completion_server.core.request import Snippet
from draft_model.core import PipelineError
from draft_model.data.fim import Split, encode_split, narrow, ragged_pieces, split_at_random
from draft_model.data.tokenizer import NO_CONTEXT, PromptContext, TemplateEncoder

FIM_SHARE = 0.7
SNIPPET_SHARE = 0.2
"""Share of the splits with snippets; how often editors send any is not known."""
GENERATED_SHARE = 0.5
MAX_SNIPPETS, MIN_SNIPPET_LINES = 3, 2
MIN_SNIPPET_PART, MAX_SNIPPET_PART = 0.2, 0.6
"""Share of a sample's text that the snippets take."""
RAGGED_SHARE = 0.6
RAGGED_MEAN_CHARS = 40
MIN_WINDOW_CHARS, MAX_WINDOW_CHARS = 120, 2800
LONGEST_ROW_TOKENS = 1024
"""Row length for `MAX_WINDOW_CHARS`. Longer rows have longer windows, so that the model learns far positions."""
GOLDEN_RATIO = 0.6180339887498949
MAX_TRIES = 100
MAX_NARROWER, NARROWER = 4, 0.9
"""How often a split that is too long is narrowed, each time to this share of the length that should fit."""
CHARS_A_TOKEN = 2.6
"""Less than the tokenizer's 3.5, so that nearly every window fits its estimate."""
MIN_ROOM_TOKENS = 48


@dataclass(frozen=True)
class TrainingSample:
    """Token ids, and the index of the first token of the completion."""

    ids: list[int]
    middle_from: int


class CorpusText:
    """Texts that are addressed by one position in [0, 1); each takes a share by its length.

    `paths`, if given, has a path for each text: texts of one folder are each other's context.
    """

    def __init__(self, texts: Sequence[str], paths: Sequence[str] = ()) -> None:
        kept = [index for index, text in enumerate(texts) if text.strip()]
        if not kept:
            raise PipelineError("there is no text to draw from")
        self._texts = [texts[index] for index in kept]
        self._paths = [paths[index] for index in kept] if paths else []
        self._starts = np.cumsum([0, *(len(text) for text in self._texts)])
        self._folders = defaultdict(list)
        for index, path in enumerate(self._paths):
            self._folders[_folder(path)].append(index)

    def window(self, position: float, num_chars: int) -> str:
        """Whole lines around `position`: from a line start, `num_chars` or a line more, within one text."""
        index, offset = self._find(position)
        return _cut(self._texts[index], offset, num_chars)

    def context(self, position: float, num_chars: int, rng: Random) -> PromptContext:
        """Pieces of one to `MAX_SNIPPETS` other texts of the folder, about `num_chars` together, or nothing."""
        if not self._paths:
            return NO_CONTEXT
        index, _ = self._find(position)
        others = [other for other in self._folders[_folder(self._paths[index])] if other != index]
        chosen = rng.sample(others, min(len(others), rng.randint(1, MAX_SNIPPETS)))
        size = num_chars // max(1, len(chosen))
        pieces = (self._piece(other, size, rng) for other in chosen)
        snippets = tuple(
            Snippet(quote(self._paths[other], errors="replace"), text, score)
            for score, (other, text) in enumerate(zip(chosen, pieces, strict=True))
            if text.rstrip().count("\n") + 1 >= MIN_SNIPPET_LINES
        )
        return PromptContext(self._paths[index], snippets) if snippets else NO_CONTEXT

    def _piece(self, index: int, num_chars: int, rng: Random) -> str:
        text = self._texts[index]
        return _cut(text, rng.randrange(len(text)), num_chars)

    def _find(self, position: float) -> tuple[int, int]:
        """The text at a position, and the offset in it."""
        offset = int(position * int(self._starts[-1]))
        index = int(np.searchsorted(self._starts, offset, side="right")) - 1
        return index, offset - int(self._starts[index])


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _cut(text: str, offset: int, num_chars: int) -> str:
    inner = max(0, min(offset, len(text) - num_chars))
    start = text.rfind("\n", 0, inner) + 1
    end = text.find("\n", min(start + num_chars, len(text)))
    return text[start : len(text) if end < 0 else end + 1]


def window_chars(row_tokens: int) -> int:
    """The longest window for rows of at most `row_tokens`."""
    return MAX_WINDOW_CHARS * max(row_tokens, LONGEST_ROW_TOKENS) // LONGEST_ROW_TOKENS


@dataclass(frozen=True)
class SampleMaker:
    """Draws samples from texts, and from splits that a target completed (`generated`).

    `max_window_chars` is the longest window's length; `window_chars` computes it from the rows. `snippet_share` of the
    splits have pieces of other files in front, if the text's folder has others.
    """

    texts: CorpusText
    encoder: TemplateEncoder
    fim_share: float = FIM_SHARE
    generated: Sequence[Split] = ()
    generated_share: float = 0.0
    max_window_chars: int = MAX_WINDOW_CHARS
    snippet_share: float = 0.0

    def draw(self, position: float, max_tokens: int, rng: Random, *, is_generated: bool = False) -> TrainingSample:
        """One sample at `position`: a window split for fill-in-the-middle, or plain text from left to right.

        Its length is log-uniform, and about `max_tokens` tokens at most. With `is_generated` it is a split that a
        target completed, with fewer lines around it if the room is short.
        """
        if is_generated:
            return self._draw_generated(position, max_tokens)
        num_chars = exp(rng.uniform(log(MIN_WINDOW_CHARS), log(self.max_window_chars)))
        num_chars = min(num_chars, max_tokens * CHARS_A_TOKEN)
        text = self.texts.window(position, int(num_chars))
        if text.strip() and rng.random() < self.fim_share:
            context, text = self._show_others(position, text, num_chars, rng)
            lines_behind = self.encoder.template.lines_behind
            return self._split(split_at_random(text, rng, lines_behind=lines_behind), context)
        pieces = ragged_pieces(text, rng, RAGGED_MEAN_CHARS) if rng.random() < RAGGED_SHARE else [text]
        ids = self.encoder.encode_file(pieces)
        return TrainingSample(ids, len(ids))

    def _draw_generated(self, position: float, max_tokens: int) -> TrainingSample:
        split = self.generated[int(position * len(self.generated))]
        num_chars = max_tokens * CHARS_A_TOKEN
        sample = self._split(narrow(split, int(num_chars)), NO_CONTEXT)
        for _ in range(MAX_NARROWER):
            if len(sample.ids) <= max_tokens:
                break
            num_chars *= NARROWER * max_tokens / len(sample.ids)
            sample = self._split(narrow(split, int(num_chars)), NO_CONTEXT)
        return sample

    def _show_others(self, position: float, text: str, num_chars: float, rng: Random) -> tuple[PromptContext, str]:
        """Draw whether to show other files; return their pieces, and the text shortened to make room."""
        if not self.snippet_share or rng.random() >= self.snippet_share:
            return NO_CONTEXT, text
        part = rng.uniform(MIN_SNIPPET_PART, MAX_SNIPPET_PART)
        context = self.texts.context(position, int(num_chars * part), rng)
        less = self.texts.window(position, int(num_chars * (1 - part)))
        return (context, less) if context.snippets and less.strip() else (NO_CONTEXT, text)

    def _split(self, split: Split, context: PromptContext) -> TrainingSample:
        ids, middle_from = encode_split(self.encoder, split, context)
        return TrainingSample(ids, middle_from)

    def row(self, slot: int, num_tokens: int, rng: Random) -> tuple[list[int], list[bool], int]:
        """A full row of samples, a mark for each token of a completion, and the first unused slot.

        A slot is a position of the golden-ratio sequence over the texts.
        """
        ids: list[int] = []
        is_middle: list[bool] = []
        last_slot = slot + MAX_TRIES
        is_generated = self._takes_generated(rng)
        while len(ids) < num_tokens:
            room = num_tokens - len(ids)
            sample = self.draw(slot * GOLDEN_RATIO % 1.0, room, rng, is_generated=is_generated)
            if len(sample.ids) <= room or room < MIN_ROOM_TOKENS or slot >= last_slot:
                ids += sample.ids[:room]
                is_middle += [index >= sample.middle_from for index in range(min(room, len(sample.ids)))]
                # Drawn again only after a sample that fits: the kind that seldom fits would be rarer than its share.
                is_generated = self._takes_generated(rng)
            slot += 1
        return ids, is_middle, slot

    def _takes_generated(self, rng: Random) -> bool:
        return bool(self.generated) and rng.random() < self.generated_share
