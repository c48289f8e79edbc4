"""Texts to complete, taken from the Python standard library, which every machine has."""

import random
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DEFINITION = re.compile(r"^(?P<indent>[ ]*)def [^\n]*:\n", re.MULTILINE)
_SKIPPED_LINES = 12
"""Lines left out after the cursor: the body that the model is to write."""
_CHARACTERS_PER_KEY = 4


class TooFewTextsError(ValueError):
    """There is too little source text; the message says how much there is."""


@dataclass(frozen=True, slots=True)
class CursorText:
    """A document around a cursor."""

    prefix: str
    suffix: str


def distinct_texts(count: int, *, prefix_chars: int, suffix_chars: int, seed: int) -> list[CursorText]:
    """Return texts of one length with different beginnings, so that no prefix cache can reuse them.

    The cursor is at the start of a function's body, so that completions are long.

    Raises:
        TooFewTextsError: the standard library has too few.

    """
    places = _bodies(prefix_chars, suffix_chars, random.Random(seed))
    texts: list[CursorText] = []
    beginnings: set[str] = set()
    for text in places:
        if text.prefix[:16] not in beginnings:
            beginnings.add(text.prefix[:16])
            texts.append(text)
        if len(texts) == count:
            return texts
    msg = f"the standard library has {len(texts)} places for texts of this size, {count} are wanted"
    raise TooFewTextsError(msg)


def typed_texts(documents: int, keys: int, *, prefix_chars: int, suffix_chars: int, seed: int) -> list[CursorText]:
    """Return the texts that editors send while `documents` users make `keys` pauses each in their own documents.

    All first pauses come first, then all second ones, so that a user's earlier text is in the prefix cache.
    """
    room = keys * _CHARACTERS_PER_KEY
    ends = distinct_texts(documents, prefix_chars=prefix_chars + room, suffix_chars=suffix_chars, seed=seed)
    return [
        CursorText(end.prefix[: len(end.prefix) - room + (key + 1) * _CHARACTERS_PER_KEY], end.suffix)
        for key in range(keys)
        for end in ends
    ]


def _bodies(prefix_chars: int, suffix_chars: int, chance: random.Random) -> Iterator[CursorText]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chance.shuffle(files)
    for file in files:
        source = file.read_text(encoding="utf-8", errors="ignore")
        next_start = 0
        for match in _DEFINITION.finditer(source):
            start = match.end() - prefix_chars
            resume = _line_after(source, match.end())
            if start < next_start or resume + suffix_chars > len(source):
                continue
            next_start = match.end()
            prefix = source[start : match.end()] + match.group("indent") + "    "
            yield CursorText(prefix[-prefix_chars:], "\n" + source[resume : resume + suffix_chars - 1])


def _line_after(source: str, position: int) -> int:
    for _ in range(_SKIPPED_LINES):
        found = source.find("\n", position)
        if found < 0:
            return len(source)
        position = found + 1
    return position
