"""Chooses what the prompt of a next edit shows beside the lines that may change. Pure.

Where the room is short, snippets are left out first, then the oldest edits, then the lines far from the cursor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from completion_server.core.diffs import parse_hunks, plain_breaks
from completion_server.core.request import Request, Snippet
from completion_server.text.prompt.edits.region import Region
from completion_server.text.prompt.edits.template import EditTemplate, ShownEdit, ShownSnippet, View, num_characters_of
from completion_server.text.prompt.snippets import short_path
from completion_server.text.prompt.window import first_lines

T = TypeVar("T")

_FRAME_CHARACTERS = 32
"""Of the headings around an edit or a snippet."""
_MIN_LINES = 2
"""A snippet with fewer lines is left out."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """What a prompt may show."""

    least: View
    """The path and the region only."""
    lines: Sequence[tuple[bool, str]]
    """Lines around the region, the nearest first, and whether they are above it."""
    edits: Sequence[ShownEdit]
    """The newest first."""
    snippets: Sequence[Snippet]
    """The best first."""


def candidates_of(request: Request, region: Region, template: EditTemplate) -> Candidates:
    """Return what a request offers to a prompt, without the template's markers."""
    assert request.next_edit is not None
    shield = template.shield
    above = [(True, f"{line}\n") for line in shield(region.above(template.shown.above)).split("\n")[-2::-1]]
    below = [(False, line) for line in shield(region.below(template.shown.below)).splitlines(keepends=True)]
    recent = request.next_edit.recent_edits[::-1][: template.max_edits]
    return Candidates(
        View(shield(short_path(request.document_uri)), region),
        lines=[line for pair in zip_longest(above, below) for line in pair if line is not None],
        edits=[_shown_edit(shield(short_path(each.uri)), shield(each.diff)) for each in recent],
        snippets=sorted(request.snippets, key=lambda snippet: -snippet.score),
    )


def _shown_edit(path: str, diff: str) -> ShownEdit:
    return ShownEdit(path, plain_breaks(diff).rstrip("\n") + "\n", parse_hunks(diff))


def fit(candidates: Candidates, template: EditTemplate, num_characters: int) -> View:
    """Return what fits into a number of characters. Once something does not, nothing of less use is shown."""
    left = num_characters - num_characters_of(template.render(candidates.least))
    lines, left = _take(candidates.lines, [len(line) for _is_above, line in candidates.lines], left)
    sizes = [2 * (len(each.path) + _FRAME_CHARACTERS) + len(each.diff) for each in candidates.edits]
    edits, left = _take(candidates.edits, sizes, left)
    return replace(
        candidates.least,
        above="".join(line for is_above, line in lines[::-1] if is_above),
        below="".join(line for is_above, line in lines if not is_above),
        edits=edits[::-1],
        snippets=_take_snippets(candidates.snippets, template, left)[::-1],
    )


def _take(items: Sequence[T], sizes: Sequence[int], left: int) -> tuple[Sequence[T], int]:
    """Return the first items that fit, and the characters that are left then: none if some item did not fit."""
    for num, size in enumerate(sizes):
        if size > left:
            return items[:num], 0
        left -= size
    return items, left


def _take_snippets(snippets: Sequence[Snippet], template: EditTemplate, left: int) -> list[ShownSnippet]:
    """Return the first snippets that fit; the last of them may be cut."""
    taken: list[ShownSnippet] = []
    for snippet in snippets:
        path = template.shield(short_path(snippet.uri))
        left -= len(path) + _FRAME_CHARACTERS
        text = first_lines(plain_breaks(snippet.text), max(0, left)).rstrip("\n") + "\n"
        if left <= 0 or (text.count("\n") < _MIN_LINES and len(text) < len(snippet.text)):
            break
        taken.append(ShownSnippet(path, template.shield(text)))
        left -= len(text)
    return taken
