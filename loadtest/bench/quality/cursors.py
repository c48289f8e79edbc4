"""The cursors: places in real files at which an editor asks, and the text that stood there.

`word` is inside a word, `gap` behind a blank or an opening bracket, `line` behind the indentation of a line. The rest
of the line is cut out. `closer` is between a bracket or quote and the one that closes it: the rest of the line is cut
out but for that one, which an editor has inserted. `body` is in an empty block: its statements are cut out.
"""

import gzip
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from loadtest.bench.quality.corpus import Source, sources
from loadtest.bench.quality.languages import BY_NAME, LANGUAGES, Language

BODY = "body"
_BEFORE_CHARS, _AFTER_CHARS = 1_000, 300
_ANYWHERE = range(300, 1_000_000)
"""Not in the first lines, which are a licence or imports."""
_MAX_REST = 120
_MAX_BODY_CHARS = 600
_BODY_LINES = range(2, 13)
_PAIRS = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}


class Span(NamedTuple):
    """Offsets of a cursor in its file, in characters."""

    cursor: int
    end: int
    """The end of the text that belongs at the cursor."""
    cut: int
    """The end of the text that is cut out."""
    kept: str = ""
    """Text that stands between the cursor and `cut` nevertheless."""


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """A cursor in a file without the text that belongs there."""

    set: str
    path: str
    digest: str
    licence: str
    language: str
    kind: str
    before: str
    """The file up to the cursor."""
    truth: str
    """The text that belongs between `before` and `after`."""
    after: str

    @property
    def typed(self) -> str:
        """The cursor's line up to the cursor."""
        return self.before[self.before.rfind("\n") + 1 :]

    @property
    def prefix(self) -> str:
        """The last whole lines of the text before the cursor that contestants get."""
        part = self.before[-_BEFORE_CHARS:]
        return part if len(part) == len(self.before) else part[part.find("\n") + 1 :]

    @property
    def suffix(self) -> str:
        """The first whole lines of the text after the cursor that contestants get."""
        part = self.after[:_AFTER_CHARS]
        return part if len(part) == len(self.after) else part[: part.rfind("\n") + 1] or part


def file_cursors(num: int, seed: int, languages: Sequence[Language] = LANGUAGES) -> list[Cursor]:
    """Return at least `num` cursors in the files of the corpus: as many of each language and kind, if there are."""
    cells = sum(1 if kind != BODY or each.block else 0 for each in languages for kind in KINDS)
    share = -(-num // cells)
    return [cursor for each in languages for cursor in language_cursors(each, share, seed, sources(each, seed))]


def language_cursors(language: Language, num: int, seed: int, files: Iterator[Source]) -> list[Cursor]:
    """Return `num` cursors of each kind, at most one of a kind in each file."""
    found: dict[str, list[Cursor]] = {kind: [] for kind in KINDS if kind != BODY or language.block}
    for source in files:
        for kind, cursors in found.items():
            if len(cursors) < num and (cursor := cursor_in(source, language, kind, seed)):
                cursors.append(cursor)
        if all(len(cursors) == num for cursors in found.values()):
            break
    return [cursor for cursors in found.values() for cursor in cursors]


def cursor_in(
    source: Source, language: Language, kind: str, seed: int, within: range = _ANYWHERE, of_set: str = "files"
) -> Cursor | None:
    """Return a cursor of a kind in a file, chosen by the seed; None if the file has no place for it `within`."""
    text, chance = source.text, random.Random(f"{seed}:{source.path}:{kind}")
    spans = KINDS[kind](text, language, chance)
    fitting = [each for each in spans if each.cursor in within and text[each.cursor : each.end].strip()]
    if not fitting:
        return None
    span = chance.choice(fitting)
    return Cursor(
        set=of_set,
        path=source.path,
        digest=source.digest,
        licence=source.licence,
        language=language.name,
        kind=kind,
        before=text[: span.cursor],
        truth=text[span.cursor : span.end],
        after=span.kept + text[span.cut :],
    )


def _at(pattern: re.Pattern[str], text: str, _language: Language, chance: random.Random) -> Iterator[Span]:
    """Return cursors at the end of each match; inside a word if the match has a group, which is the word."""
    for match in pattern.finditer(text):
        start = match.end()
        if pattern.groups:
            start = chance.randrange(match.start(1) + 1, match.end(1))
        end = _end_of_line(text, start)
        if end - start <= _MAX_REST:
            yield Span(start, end, end)


def _closers(text: str, _language: Language, chance: random.Random) -> Iterator[Span]:
    for match in re.finditer(r"[(\[{]|(?<![\w\\])[\"']", text):
        start, cut = match.end(), _end_of_line(text, match.end())
        end = _closing(text, match.start(), cut)
        if end is not None and start < end <= start + _MAX_REST:
            inside = chance.choice((start, chance.randrange(start, end)))
            yield Span(inside, end, cut, text[end])


def _closing(text: str, opening: int, end: int) -> int | None:
    """Return the offset of the bracket or quote that closes the one at `opening`, before `end`; None without one."""
    first, depth = text[opening], 0
    for at in range(opening + 1, end):
        if text[at] == _PAIRS[first] and text[at - 1] != "\\" and not depth:
            return at
        depth += (text[at] == first) - (text[at] == _PAIRS[first])
    return None


def _bodies(text: str, language: Language, _chance: random.Random) -> Iterator[Span]:
    for start, end in language.bodies(text):
        body = text[start:end]
        starts_line = not text[text.rfind("\n", 0, start) + 1 : start].strip()
        if starts_line and body.count("\n") + 1 in _BODY_LINES and len(body) <= _MAX_BODY_CHARS:
            yield Span(start, end, end)


def _end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


KINDS: Mapping[str, Callable[[str, Language, random.Random], Iterator[Span]]] = {
    "word": partial(_at, re.compile(r"\b([A-Za-z_]\w{2,})")),
    "gap": partial(_at, re.compile(r"(?<=\S)[ (\[{](?=[^\s)\]}])")),
    "line": partial(_at, re.compile(r"^[ \t]*(?=\S)", re.MULTILINE)),
    BODY: _bodies,
    "closer": _closers,
}
_LINE_KINDS = ("word", "gap", "line", "closer")


def humaneval_cursors(path: Path, num: int, seed: int) -> list[Cursor]:
    """Return cursors in HumanEval's single lines: each in the line that is to be filled in, of the four kinds in turn.

    `path` is the file HumanEval-SingleLineInfilling.jsonl.gz.
    """
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        tasks = [json.loads(line) for line in lines]
    random.Random(seed).shuffle(tasks)
    found: list[Cursor] = []
    for task in tasks:
        if len(found) == num:
            break
        line, kind = task["canonical_solution"].rstrip("\n"), _LINE_KINDS[len(found) % len(_LINE_KINDS)]
        source = Source(task["task_id"], task["prompt"] + task["canonical_solution"] + task["suffix"], "", "MIT")
        within = range(len(task["prompt"]), len(task["prompt"]) + len(line))
        if cursor := cursor_in(source, BY_NAME["python"], kind, seed, within, "humaneval"):
            found.append(cursor)
    return found
