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
import numpy.typing as npt

from loadtest.bench.quality.cursors import Cursor
from loadtest.bench.quality.languages import BY_NAME
from loadtest.tuning.choice import Estimate

MEASURES = ("exact", "first_word", "agreed", "empty", "doubled", "broken")
Answers = Mapping[str, Sequence[str]]
"""The answers of each contestant, in the order of the cursors."""
Array = npt.NDArray[np.float64]

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
        self.names = tuple(answers)
        self._values = {
            name: np.array([list(measure(*each).values()) for each in zip(cursors, texts, strict=True)], dtype=float)
            for name, texts in answers.items()
        }
        paths = [cursor.path for cursor in cursors]
        files, self._file_of = np.unique(paths, return_inverse=True)
        shares = np.full(len(files), 1 / len(files))
        self._counts = np.random.default_rng(seed).multinomial(len(files), shares, _RESAMPLES)

    def of(self, name: str, chosen: Sequence[int]) -> dict[str, Estimate]:
        """Return the mean of each measure over the chosen cursors."""
        means, resampled = self._means(name, chosen)
        return dict(zip(MEASURES, map(_estimate, means, resampled.T), strict=True))

    def ratios(self, name: str, to: str, chosen: Sequence[int]) -> dict[str, Estimate]:
        """Return the ratio of each measure's mean to that of another contestant; nan for a mean of 0."""
        (above, above_resampled), (below, below_resampled) = self._means(name, chosen), self._means(to, chosen)
        with np.errstate(divide="ignore", invalid="ignore"):
            means, resampled = above / below, above_resampled / below_resampled
        return dict(zip(MEASURES, map(_estimate, means, resampled.T), strict=True))

    def _means(self, name: str, chosen: Sequence[int]) -> tuple[Array, Array]:
        """Return the means, of shape (measures,), and those of the resamples that have one of these cursors."""
        values, weights = self._values[name][chosen], self._counts[:, self._file_of[chosen]]
        weights = weights[weights.any(axis=1)]
        return values.mean(axis=0), weights @ values / weights.sum(axis=1, keepdims=True)


def _estimate(mean: float, resampled: Array) -> Estimate:
    finite = resampled[np.isfinite(resampled)]
    low, high = np.quantile(finite, _BOUNDS) if len(finite) else (np.nan, np.nan)
    return Estimate(float(mean), float(low), float(high))


def slug(name: str) -> str:
    """Return a contestant's name as a part of a figure's name: "plain_healed"."""
    return "_".join("".join(each if each.isalnum() else " " for each in name).split())


def groups(cursors: Sequence[Cursor]) -> dict[str, dict[str, list[int]]]:
    """Return the places of the cursors of each set, and of the files' kinds and languages, in the order they come."""
    found: dict[str, dict[str, list[int]]] = {"set": {}, "kind": {}, "language": {}}
    for place, cursor in enumerate(cursors):
        for attribute, members in found.items():
            if attribute == "set" or cursor.set == "files":
                members.setdefault(getattr(cursor, attribute), []).append(place)
    return found


def figures(scores: Scores, reference: str) -> dict[str, Any]:
    """Return the figures: `CONTESTANT_MEASURE` over the files' cursors, and the same in each group.

    `CONTESTANT_MEASURE_ratio` is relative to the contestant `reference`, if it took part.
    """
    parts = groups(scores.cursors)
    files = parts["set"]["files"]
    found: dict[str, Any] = {"cursors": len(files), "contestants": {slug(name): name for name in scores.names}}
    for name in scores.names:
        found |= {f"{slug(name)}_{key}": value for key, value in scores.of(name, files).items()}
        if reference in scores.names and name != reference:
            ratios = scores.ratios(name, reference, files)
            found |= {f"{slug(name)}_{key}_ratio": value for key, value in ratios.items()}
    for attribute, members in parts.items():
        found[f"by_{attribute}"] = {
            member: {"cursors": len(places), **{slug(name): scores.of(name, places) for name in scores.names}}
            for member, places in members.items()
        }
    return found
