"""What an answer is worth, compared with the text that stood at the cursor. Each measure is a number from 0 to 1.

- `exact`: the answer's first line is that of the file, blanks at its end aside. For all kinds but `body` the answer has
  one line.
- `first_word`: the answer begins as the file's text does, up to the end of the text's first word, and its own word ends
  there, too. A text without a word counts up to the end of its first characters that are no blanks.
- `agreed`: the characters up to the first difference, of those of the file's text.
- `empty`: the answer is blank.
- `doubled`: it repeats what stands left or right of the cursor (`is_doubled`), and the file's text does not.
- `broken`: with the answer, if there is one, the file has more syntax errors than with its own text: more ERROR and
  MISSING nodes in tree-sitter's tree.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from loadtest.bench.quality.cursors import BY_NAME, Cursor
from loadtest.tuning.choice import Estimate

MEASURES = ("exact", "first_word", "agreed", "empty", "doubled", "broken")
Answers = Mapping[str, Sequence[str]]
"""The answers of each contestant, in the order of the cursors."""

_RESAMPLES = 2_000
_BOUNDS = (0.025, 0.975)
_FIRST_WORD, _FIRST_CHARACTERS = re.compile(r"\W*\w+"), re.compile(r"\s*\S+")
_OPENING = {")": "(", "]": "[", "}": "{"}
_MIN_TYPED = 3
_MIN_WORD = 2


def measure(cursor: Cursor, answer: str) -> Mapping[str, float]:
    """Return the measures of an answer by name."""
    empty = not answer.strip()
    return {
        "exact": _first_line(answer) == _first_line(cursor.truth),
        "first_word": is_first_word_right(answer, cursor.truth),
        "agreed": _num_agreed(answer, cursor.truth) / len(cursor.truth),
        "empty": empty,
        "doubled": not empty and is_doubled(cursor, answer) and not is_doubled(cursor, cursor.truth),
        "broken": not empty and _num_errors(cursor, answer) > _num_errors(cursor, cursor.truth),
    }


def _num_agreed(answer: str, truth: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(answer, truth, strict=False)))


def is_first_word_right(answer: str, truth: str) -> bool:
    """Return whether an answer begins with the first word of the true text, which is not blank."""
    unit = _FIRST_WORD if _FIRST_WORD.match(truth) else _FIRST_CHARACTERS
    first, found = unit.match(truth), unit.match(answer)
    return first is not None and found is not None and found[0] == first[0]


def is_doubled(cursor: Cursor, text: str) -> bool:
    """Return whether a text writes again what stands around the cursor.

    Left of it: the cursor's line, the part of a word that it ends with, or the whole line before. Right of it: the
    bracket or quote that closes the one before the cursor, or the whole next line.
    """
    return _repeats_left(cursor, text) or _repeats_right(cursor, text)


def _repeats_left(cursor: Cursor, text: str) -> bool:
    typed = cursor.typed.strip()
    begun = text.lstrip()
    word = re.search(r"\w+$", cursor.typed)
    if len(typed) >= _MIN_TYPED and begun.startswith(typed):
        return True
    if word and len(word[0]) >= _MIN_WORD and text.startswith(word[0]):
        return True
    above = cursor.before[: -len(cursor.typed) - 1].rstrip().rpartition("\n")[2]
    return not typed and _is_same_line(_first_line(text), above)


def _repeats_right(cursor: Cursor, text: str) -> bool:
    rest, _, below = cursor.after.partition("\n")
    if rest.strip():
        return _closes(text, rest[0])
    following = _first_line(below.lstrip("\n"))
    first, *others = (cursor.typed + text).split("\n")
    return _is_same_line(first, following) or (following != "" and following in map(str.rstrip, others))


def _closes(text: str, closing: str) -> bool:
    """Return whether a text closes a bracket that it does not open, or has an odd number of a quote."""
    if closing not in _OPENING:
        return text.replace(f"\\{closing}", "").count(closing) % 2 == 1
    depth = 0
    for each in text:
        depth += (each == _OPENING[closing]) - (each == closing)
        if depth < 0:
            return True
    return False


def _is_same_line(first: str, second: str) -> bool:
    return first.strip() == second.strip() and re.search(r"\w", first) is not None


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].rstrip()


def _num_errors(cursor: Cursor, text: str) -> int:
    return BY_NAME[cursor.language].num_errors(cursor.before + text + cursor.after)


class Scores:
    """The measures of all answers. Intervals of 95% are from a bootstrap over files, the same for all contestants."""

    def __init__(self, cursors: Sequence[Cursor], answers: Answers, seed: int) -> None:
        """Measure the answers."""
        self.cursors = cursors
        self._values = {
            name: np.array([list(measure(*each).values()) for each in zip(cursors, texts, strict=True)], dtype=float)
            for name, texts in answers.items()
        }
        files, self._file_of = np.unique([cursor.path for cursor in cursors], return_inverse=True)
        shares = np.full(len(files), 1 / len(files))
        self._counts = np.random.default_rng(seed).multinomial(len(files), shares, _RESAMPLES)

    def of(self, chosen: Sequence[int]) -> dict[str, dict[str, Estimate]]:
        """Return the mean of each measure over the chosen cursors, by contestant."""
        weights = self._counts[:, self._file_of[chosen]]
        weights = weights[weights.any(axis=1)]  # the resamples that have one of these cursors
        found = {}
        for name, values in self._values.items():
            resampled = weights @ values[chosen] / weights.sum(axis=1, keepdims=True)
            bounds = np.quantile(resampled, _BOUNDS, axis=0).T
            means = zip(values[chosen].mean(axis=0), bounds, strict=True)
            found[name] = dict(
                zip(MEASURES, (Estimate(float(each), *map(float, own)) for each, own in means), strict=True)
            )
        return found


def slug(name: str) -> str:
    """Return a contestant's name as a part of a figure's name: "server_typed_line"."""
    return "_".join(re.findall(r"[^\W_]+", name))


def figures(scores: Scores) -> dict[str, Any]:
    """Return `CONTESTANT_MEASURE` over all cursors, and the same for each kind and language."""
    everything = scores.of(range(len(scores.cursors)))
    found: dict[str, Any] = {"cursors": len(scores.cursors), "contestants": {slug(name): name for name in everything}}
    for name, own in everything.items():
        found |= {f"{slug(name)}_{key}": value for key, value in own.items()}
    for attribute in ("kind", "language"):
        groups: dict[str, list[int]] = {}
        for place, cursor in enumerate(scores.cursors):
            groups.setdefault(getattr(cursor, attribute), []).append(place)
        found[f"by_{attribute}"] = {
            member: {"cursors": len(places), **{slug(name): own for name, own in scores.of(places).items()}}
            for member, places in groups.items()
        }
    return found
