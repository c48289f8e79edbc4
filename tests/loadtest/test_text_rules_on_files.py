"""The text rules show what stands in real files: parts that are cut out of them.

Each case gives exactly the part that was cut out to the rules as the model's output, once alone and once with the text
that follows in the file, as models like to go on. The rules must show exactly that part.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from completion_server.core.languages import language_of
from completion_server.core.request import Caller, Mode, Request
from completion_server.text.rules.lines import LineRules
from completion_server.text.rules.text import TextRules
from tests.support.models import ROOT

_MAX_LINE = 300
_MAX_BLOCK_LINES = 30
_GOES_ON = 1200
"""Characters of the file that follow the part in the second output of a case."""
_FEED = 5
"""Characters of a piece, about a token."""
_TOKENS = re.compile(r"\w+|\s+|(\W)\1*")
_BRACKETS = {")": "(", "]": "[", "}": "{"}
_QUOTES = "\"'`"
_CLOSER = re.compile(r"[)\]}]|</")
_WORD_CLOSER = re.compile(r"(?:end\w*|fi|done|esac)\b(?!\s*[=.:,(])", re.IGNORECASE)
_CONTINUATION = re.compile(r"[)\]}]*\s*(?:elif|else|elsif|elseif|except|finally|catch|rescue|ensure|when)\b")


class Kind(StrEnum):
    """What is cut out of the file."""

    LINE = auto()
    """The end of a line."""
    INSIDE = auto()
    """A part of a line with balanced brackets and quotes; the rest of the line stands right of the cursor."""
    PAIR = auto()
    """What stands between an opening bracket and the last such closing bracket of the line."""
    QUOTE = auto()
    """From within the first string of a line to the last such quote of the line."""
    STATEMENT = auto()
    """A statement of several lines, from its indentation on."""
    BODY = auto()
    """The lines that belong to an opening line, with what closes them."""
    CLOSED_BODY = auto()
    """The lines between an opening line and the line that closes it, from their indentation on."""


@dataclass(frozen=True, slots=True)
class Case:
    """A part that was cut out of a file, and the text around it."""

    kind: Kind
    path: str
    prefix: str
    part: str
    suffix: str

    @property
    def expected(self) -> str:
        """The text that must be shown: blanks at the end of a line have no use."""
        is_rest_blank = not self.suffix.partition("\n")[0].strip()
        return self.part.rstrip() if is_rest_blank or self.suffix[0].isspace() else self.part

    @property
    def request(self) -> Request:
        """The request that an editor would make."""
        is_block = self.kind in {Kind.STATEMENT, Kind.BODY, Kind.CLOSED_BODY}
        return Request(
            id="cut-out",
            caller=Caller("cut-out", "cut-out"),
            sequence=1,
            document_uri=self.path,
            language_id="",
            prefix=self.prefix,
            suffix=self.suffix,
            max_tokens=1024,
            received_at=0.0,
            mode=Mode.MULTI_LINE if is_block else Mode.SINGLE_LINE,
        )


def shown(request: Request, text: str, *, is_cut: bool = False) -> str:
    """Return the part of a model's output that the text rules show; `is_cut` if the token limit ended it."""
    rules = TextRules(request)
    sent = []
    for start in range(0, len(text), _FEED):
        sent.append(rules.feed(text[start : start + _FEED]))
        if rules.is_done:
            return "".join(sent)
    return "".join(sent) + rules.finish(is_cut=is_cut)


def damages(case: Case) -> Iterator[tuple[str, str]]:
    """Yield the outputs of which the rules show something else than the part, each with what they show."""
    goes_on = case.part + case.suffix[:_GOES_ON]
    for output, is_cut in ((case.part, False), (goes_on, len(case.suffix) > _GOES_ON)):
        found = shown(case.request, output, is_cut=is_cut)
        if found != case.expected:
            yield output, found


def cases_of(path: str, source: str, per_kind: int = 4) -> Iterator[Case]:
    """Yield up to `per_kind` cases of each kind of a file; the same file has the same cases."""
    spans = defaultdict[Kind, list[tuple[int, int]]](list)
    for kind, start, end in _spans_of(source, 3 * per_kind):
        if source[start:end].strip() and len(spans[kind]) < per_kind:
            spans[kind].append((start, end))
    for kind, found in spans.items():
        for start, end in found:
            yield Case(kind, path, source[:start], source[start:end], source[end:])


def _spans_of(source: str, number: int) -> Iterator[tuple[Kind, int, int]]:
    """Yield parts of a file: those of up to `number` lines and of as many blocks."""
    chance = random.Random(source)
    lines = source.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    visible = [at for at, line in enumerate(lines) if line.strip() and len(line) <= _MAX_LINE]
    for at in chance.sample(visible, min(len(visible), number)):
        for kind, start, end in _line_spans(lines[at].rstrip(), chance):
            yield kind, starts[at] + start, starts[at] + end
    openers = list(_openers(lines))
    for first, last in chance.sample(openers, min(len(openers), number)):
        yield from _block_spans(lines, starts, first, last)


def _line_spans(line: str, chance: random.Random) -> Iterator[tuple[Kind, int, int]]:
    """Yield parts of a line."""
    indent = len(line) - len(line.lstrip())
    bounds = [match.start() for match in _TOKENS.finditer(line) if match.start() >= indent]
    yield Kind.LINE, chance.choice(bounds), len(line)
    pairs = [(start, end) for at, start in enumerate(bounds) for end in bounds[at + 1 :]]
    inside = [pair for pair in chance.sample(pairs, min(20, len(pairs))) if _is_balanced(line[pair[0] : pair[1]])]
    if inside:
        yield Kind.INSIDE, *inside[0]
    for closer, opener in _BRACKETS.items():
        start, end = line.find(opener) + 1, line.rfind(closer)
        if 0 < start < end and _is_balanced(line[:indent] + line[start - 1 : end + 1]):
            yield Kind.PAIR, start, end
    for quote in "\"'":
        first, end = line.find(quote), line.rfind(quote)
        has_escape = "\\" in line or line.count(quote) % 2 or any(other in line for other in _QUOTES if other != quote)
        if 0 <= first < end - 1 and not has_escape:
            yield Kind.QUOTE, chance.randrange(first + 1, line.index(quote, first + 1) + 1), end


def _is_balanced(text: str) -> bool:
    """Return whether brackets and quotes of a text match."""
    opened = []
    for char in text:
        if char in _BRACKETS.values():
            opened.append(char)
        elif char in _BRACKETS and (not opened or opened.pop() != _BRACKETS[char]):
            return False
    return not opened and all(text.count(quote) % 2 == 0 for quote in _QUOTES)


def _openers(lines: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the first line and the last of each statement that has indented lines."""
    indents = [_indent(line) for line in lines]
    for first, line in enumerate(lines):
        last = _end_of_block(lines, indents, first) if line.strip() else first
        if first < last < first + _MAX_BLOCK_LINES and _is_balanced("\n".join(lines[first : last + 1])):
            yield first, last


def _end_of_block(lines: Sequence[str], indents: Sequence[int | None], first: int) -> int:
    """Return the last line of the block that a line opens; the line itself if it opens none."""
    depth = indents[first] or 0
    visible = [at for at in range(first + 1, min(len(lines), first + _MAX_BLOCK_LINES + 1)) if indents[at] is not None]
    last = first
    for at, following in pairwise([*visible, len(lines)]):
        indent, text = indents[at] or 0, lines[at].strip()
        if indent < depth or (indent == depth and not (last > first and _belongs(lines[first], text))):
            break
        last = at
        is_deeper = following < len(lines) and (indents[following] or 0) > depth
        if indent == depth and not is_deeper and not _is_continuation(lines, at, following):
            break
    return last


def _belongs(opener: str, text: str) -> bool:
    """Return whether a line as deep as the opener belongs to its block."""
    is_word = not opener.rstrip().endswith(("{", ":", "(", "[", ">", ",", "=")) and _WORD_CLOSER.match(text)
    return bool(is_word or _CLOSER.match(text) or _CONTINUATION.match(text))


def _is_continuation(lines: Sequence[str], at: int, following: int) -> bool:
    return following == at + 1 < len(lines) and _CONTINUATION.match(lines[following].strip()) is not None


def _indent(line: str) -> int | None:
    return len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip()) if line.strip() else None


def _block_spans(lines: Sequence[str], starts: Sequence[int], first: int, last: int) -> Iterator[tuple[Kind, int, int]]:
    """Yield the parts of a statement."""
    opener, closer = lines[first], lines[last]
    end = starts[last] + len(closer)
    yield Kind.STATEMENT, starts[first] + len(opener) - len(opener.lstrip()), end
    depth = _indent(opener) or 0
    body = [at for at in range(first + 1, last + 1) if (_indent(lines[at]) or 0) > depth]
    if not body or body[0] > first + 1 + (not lines[first + 1].strip()):
        return
    yield Kind.BODY, starts[first] + len(opener.rstrip()), end
    is_closed = _indent(closer) == depth and body[-1] < last and len(body) + 1 >= last - first
    if is_closed:
        begin = lines[body[0]]
        yield (
            Kind.CLOSED_BODY,
            starts[body[0]] + len(begin) - len(begin.lstrip()),
            starts[body[-1]] + len(lines[body[-1]]),
        )


SNIPPETS = sorted((ROOT / "tests" / "data" / "snippets").iterdir())


def can_be_told(case: Case) -> bool:
    """Return whether a part differs from one that repeats the rest of its line."""
    rest = case.suffix.partition("\n")[0].strip()
    is_begun = len(rest) == 1 and case.part.lstrip().startswith(rest)
    return not rest or not (is_begun or case.part.rstrip().endswith(rest))


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("file", SNIPPETS, ids=lambda file: file.name)
def test_nothing_of_a_snippet_is_damaged(file: Path, *, is_known: bool) -> None:
    cases = [case for case in cases_of(file.name, file.read_text(encoding="utf-8"), per_kind=20) if can_be_told(case)]
    assert len(cases) > 30
    for case in cases:
        assert list(damages(case if is_known else replace(case, path=""))) == [], case


def test_the_snippets_are_of_many_languages_and_kinds() -> None:
    assert len({language_of("", file.name, "").name for file in SNIPPETS}) >= 20
    kinds = {case.kind for file in SNIPPETS for case in cases_of(file.name, file.read_text(encoding="utf-8"))}
    assert kinds == set(Kind)


def test_rules_that_drop_a_part_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (SNIPPETS[0].parent / "server.go").read_text(encoding="utf-8")
    monkeypatch.setattr(LineRules, "finish", lambda *_, **__: 0)
    assert any(list(damages(case)) for case in cases_of("server.go", text))
