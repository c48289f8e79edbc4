"""The figures of the contestants with their intervals, their tables, and answers side by side."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from loadtest.bench.quality.cursors import Cursor
from loadtest.bench.quality.measures import MEASURES, measure
from loadtest.bench.runner.figures import text_table
from loadtest.tuning.choice import Estimate

Answers = Mapping[str, Sequence[str]]
"""The answers of each contestant, in the order of the cursors."""
Array = npt.NDArray[np.float64]

_RESAMPLES = 2_000
_BOUNDS = (0.025, 0.975)
_SHOWN_LINES = 3


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


def tables(scores: Scores, reference: str) -> Iterator[RenderableType]:
    """Return the tables: all contestants, their ratios to the reference, and each group."""
    parts = groups(scores.cursors)
    files = parts["set"]["files"]
    rows = [(name, *_percents(scores.of(name, files))) for name in scores.names]
    yield text_table(f"{len(files)} cursors in files, % (95% interval)", ("contestant", *MEASURES), rows)
    others = [name for name in scores.names if name != reference and reference in scores.names]
    ratios = [(name, *map(_ratio, scores.ratios(name, reference, files).values())) for name in others]
    if ratios:
        yield text_table(f"relative to {reference}", ("contestant", *MEASURES), ratios)
    for attribute, members in parts.items():
        if len(members) > 1:
            grouped = [
                (f"{member} ({len(places)})", name, *_percents(scores.of(name, places)))
                for member, places in members.items()
                for name in scores.names
            ]
            yield text_table(f"by {attribute}", (attribute, "contestant", *MEASURES), grouped, num_words=2)


def _percents(found: Mapping[str, Estimate]) -> Iterator[str]:
    return (f"{100 * each.value:.0f} ({100 * each.low:.0f}-{100 * each.high:.0f})" for each in found.values())


def _ratio(found: Estimate) -> str:
    return f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f})" if np.isfinite(found.value) else "-"


def side_by_side(cursors: Sequence[Cursor], answers: Answers, num: int) -> Iterator[RenderableType]:
    """Return a table of each of `num` cursors, evenly chosen: the lines around it, its text, and all answers."""
    for place in np.linspace(0, len(cursors) - 1, min(num, len(cursors))).astype(int).tolist():
        cursor = cursors[place]
        above = "\n".join(cursor.before.split("\n")[-_SHOWN_LINES:])
        below = "\n".join(cursor.after.split("\n")[:_SHOWN_LINES])
        found = Table(title=Text(f"{cursor.kind}, {cursor.path}"), title_justify="left", show_header=False)
        found.add_row("", Text(f"{above}▮{below}"), end_section=True)
        for name, text in {"the file": cursor.truth, **{name: answers[name][place] for name in answers}}.items():
            found.add_row(name, Text(text))
        yield found
