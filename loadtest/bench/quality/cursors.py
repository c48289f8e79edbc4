"""The cursors: places in real files at which an editor asks, and the text that stood there.

`word` is inside a word, `gap` behind a blank or an opening bracket, `line` behind the indentation of a line. The rest
of the line is cut out. `closer` is between a bracket or quote and the one that closes it: the rest of the line is cut
out but for that one, which an editor has inserted. `body` is in an empty block: its statements are cut out.

The files are those of the packages that the lock files install, in an order that a seed decides. The same packages give
the same files on every machine. Nothing of them is stored in this repository. tree-sitter's grammars, for blocks and
syntax errors, are in the development requirements.
"""

import hashlib
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tree_sitter import Language as Grammar
from tree_sitter import Node, Parser

BODY = "body"
ROOTS: Mapping[str, Path] = {
    "site-packages": Path(sysconfig.get_path("purelib")),
    "node_modules": Path(__file__).parents[3] / "editors" / "node_modules",
}
_MIN_CHARS, _MAX_CHARS, _MAX_LINE = 1_500, 150_000, 400
_FILES_OF_PACKAGE = 3
"""Most files of one package and language, since a few packages have most of the files."""
_SKIPPED = re.compile(r"\.min\.|_pb2|\.d\.m?ts$|-info/|/(dist|build|bundle|generated|vendor|_vendor|vendored)/")
_GENERATED = re.compile(r"generated|do not edit|sourceMappingURL", re.IGNORECASE)
_HEAD, _TAIL = 1_000, 200
_BEFORE_CHARS, _AFTER_CHARS = 1_000, 300
_FIRST_CHARS = 300
"""No cursor is in the first lines, which are a licence or imports."""
_MAX_REST = 120
_MAX_BODY_CHARS = 600
_BODY_LINES = range(2, 13)
_PAIRS = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'"}


@dataclass(frozen=True)
class Language:
    """A language. `name` is its id in the Language Server Protocol."""

    name: str
    suffixes: tuple[str, ...]
    grammar: str
    """The function that returns the grammar, as MODULE:FUNCTION."""
    block: str = ""
    """The type of the nodes that are blocks of statements; "" if the language has none."""

    @cached_property
    def _parser(self) -> Parser:
        module, _, function = self.grammar.partition(":")
        return Parser(Grammar(getattr(import_module(module), function)()))

    def num_errors(self, text: str) -> int:
        """Return the number of ERROR and MISSING nodes of a file's syntax tree."""
        return sum(node.is_error or node.is_missing for node in self._nodes(text, only_errors=True))

    def bodies(self, text: str) -> Iterator[tuple[int, int]]:
        """Return the ranges of characters of the statements in each block, without the docstring of a function."""
        data = text.encode()
        for node in self._nodes(text) if self.block else ():
            if node.type == self.block:
                statements = node.named_children
                if statements and _is_docstring(statements[0]):
                    statements = statements[1:]
                if statements:
                    start, end = statements[0].start_byte, statements[-1].end_byte
                    yield len(data[:start].decode()), len(data[:end].decode())

    def _nodes(self, text: str, *, only_errors: bool = False) -> Iterator[Node]:
        """Return the nodes of a text's tree in order; with `only_errors` those that are, or contain, an error."""
        waiting = [self._parser.parse(text.encode()).root_node]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += (child for child in reversed(node.children) if child.has_error or not only_errors)


def _is_docstring(statement: Node) -> bool:
    return statement.type == "expression_statement" and statement.children[0].type == "string"


LANGUAGES = (
    Language("python", (".py",), "tree_sitter_python:language", "block"),
    Language("typescript", (".ts", ".mts"), "tree_sitter_typescript:language_typescript", "statement_block"),
    Language("javascript", (".js", ".mjs"), "tree_sitter_javascript:language", "statement_block"),
    Language("c", (".c",), "tree_sitter_c:language", "compound_statement"),
    Language("cpp", (".h", ".hpp", ".cc", ".cpp", ".cuh"), "tree_sitter_cpp:language", "compound_statement"),
    Language("css", (".css",), "tree_sitter_css:language", "block"),
    Language("html", (".html",), "tree_sitter_html:language"),
    Language("json", (".json",), "tree_sitter_json:language"),
    Language("yaml", (".yaml", ".yml"), "tree_sitter_yaml:language"),
    Language("markdown", (".md",), "tree_sitter_markdown:language"),
)
BY_NAME: Mapping[str, Language] = {each.name: each for each in LANGUAGES}


class Source(NamedTuple):
    """A file of the corpus. `path` begins with the name of its root, `digest` is its SHA-256."""

    path: str
    text: str
    digest: str


def sources(language: Language, seed: int, roots: Mapping[str, Path] = ROOTS) -> Iterator[Source]:
    """Return the files of a language, in an order that the seed and their paths decide.

    Generated and minified files are left out, and all but the first three files of each package.
    """
    paths = {
        path: root / relative
        for name, root in roots.items()
        for relative in _files(root)
        if relative.endswith(language.suffixes) and not _SKIPPED.search(path := f"{name}/{relative}")
    }
    taken: Counter[str] = Counter()
    for path in sorted(paths, key=lambda path: hashlib.sha256(f"{seed}:{path}".encode()).digest()):
        parts = path.split("/")
        package = "/".join(parts[: 3 if parts[1].startswith("@") else 2])  # as "node_modules/@grpc/grpc-js"
        if taken[package] == _FILES_OF_PACKAGE:
            continue
        data = paths[path].read_bytes()
        text = data.decode(errors="replace")
        if _is_written_by_hand(text):
            taken[package] += 1
            yield Source(path, text, hashlib.sha256(data).hexdigest())


def _is_written_by_hand(text: str) -> bool:
    """Return whether a file has the size and the lines of a file that people edit."""
    if not _MIN_CHARS <= len(text) <= _MAX_CHARS or "\r" in text or "\ufffd" in text:
        return False
    return max(map(len, text.split("\n"))) <= _MAX_LINE and not _GENERATED.search(text[:_HEAD] + text[-_TAIL:])


@cache
def _files(root: Path) -> tuple[str, ...]:
    return tuple(each.relative_to(root).as_posix() for each in root.rglob("*") if each.is_file())


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """A cursor in a file without the text that belongs there."""

    path: str
    digest: str
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


def file_cursors(num: int, seed: int) -> list[Cursor]:
    """Return at least `num` cursors in the files of the corpus: as many of each language and kind, if there are."""
    cells = sum(1 if kind != BODY or each.block else 0 for each in LANGUAGES for kind in KINDS)
    share = -(-num // cells)
    return [cursor for each in LANGUAGES for cursor in language_cursors(each, share, seed, sources(each, seed))]


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


def cursor_in(source: Source, language: Language, kind: str, seed: int) -> Cursor | None:
    """Return a cursor of a kind in a file, chosen by the seed; None if the file has no place for it."""
    text, chance = source.text, random.Random(f"{seed}:{source.path}:{kind}")
    spans = KINDS[kind](text, language, chance)
    fitting = [each for each in spans if each.cursor >= _FIRST_CHARS and text[each.cursor : each.end].strip()]
    if not fitting:
        return None
    span = chance.choice(fitting)
    return Cursor(
        path=source.path,
        digest=source.digest,
        language=language.name,
        kind=kind,
        before=text[: span.cursor],
        truth=text[span.cursor : span.end],
        after=span.kept + text[span.cut :],
    )


class Span(NamedTuple):
    """Offsets of a cursor in its file, in characters."""

    cursor: int
    end: int
    """The end of the text that belongs at the cursor."""
    cut: int
    """The end of the text that is cut out."""
    kept: str = ""
    """Text that stands between the cursor and `cut` nevertheless."""


def _at(pattern: re.Pattern[str], text: str, _language: Language, chance: random.Random) -> Iterator[Span]:
    """Return cursors at the end of each match; inside a word if the match has a group, which is the word."""
    for match in pattern.finditer(text):
        start = chance.randrange(match.start(1) + 1, match.end(1)) if pattern.groups else match.end()
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


def corpus_digest(cursors: Sequence[Cursor]) -> str:
    """Return a digest of all cursors: files, places and texts. Equal digests mean equal questions."""
    whole = hashlib.sha256()
    for each in cursors:
        whole.update(f"{each.path} {each.digest} {each.kind} {len(each.before)} {len(each.truth)}\n".encode())
    return whole.hexdigest()
