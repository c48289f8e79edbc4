"""Chooses what is typed: real files, and stretches of them to type key by key."""

import os
import random
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadtest import LoadTestError
from loadtest.traffic.sections import DocumentSettings

STDLIB = "stdlib"

_MIN_BYTES, _MAX_BYTES = 4_000, 120_000
_SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "lib2to3"})
_NOT_TYPED = ("encodings/", "pydoc_data/")
"""Generated tables."""
_MAX_FOLDER_FILE_BYTES = 1_000_000
_CHARACTERS_A_KEY = 3
"""Characters reserved per key when a place is drawn. Whether they suffice is checked after typing."""
_TRIES = 8
"""Places tried in a file before another file is used."""
_GOES_ON_CHARS = 200
"""Text kept after the last key, so that the answer to it can be judged too."""


class DocumentsError(LoadTestError):
    """There is too little text; the message says how much there is."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file."""

    path: str
    """Relative to its folder, with slashes."""
    text: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a document to type again."""

    before: str
    """The text up to the last key, and the text that would be typed after it."""
    ends: tuple[int, ...]
    """Offsets in `before` of the cursor: before the first key, and after each key."""
    after: str


def read_documents(settings: DocumentSettings, seed: str) -> tuple[SourceFile, ...]:
    """Return the files to type, in an order drawn from a seed. Raises DocumentsError if none is long enough."""
    if settings.source == STDLIB:
        files = library_files(sys.maxsize, random.Random(f"files/{seed}").getrandbits(32))
        return tuple(SourceFile(path, text) for path, text in files.items() if not path.startswith(_NOT_TYPED))
    found = list(_folder_files(Path(settings.source), settings.pattern))
    least = settings.prefix_chars + settings.suffix_chars + _GOES_ON_CHARS
    usable = [document for document in found if len(document.text) > least]
    if not usable:
        raise DocumentsError(
            f"documents.source: {settings.source!r} has {len(found)} readable files that match {settings.pattern!r}, "
            f"but none with more than {least} characters"
        )
    random.Random(f"files/{seed}").shuffle(usable)
    return tuple(usable)


def library_files(count: int, seed: int) -> dict[str, str]:
    """Return the texts of files of the running Python's standard library by their paths, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    names = [name for name in sorted(_python_files(root)) if _MIN_BYTES < (root / name).stat().st_size < _MAX_BYTES]
    random.Random(seed).shuffle(names)
    return {name.as_posix(): (root / name).read_text(encoding="utf-8", errors="replace") for name in names[:count]}


def find_stretch(
    document: SourceFile, num_keys: int, settings: DocumentSettings, chance: random.Random
) -> Stretch | None:
    """Draw a stretch for `num_keys` keys that starts at a line; None if no place is found."""
    text = document.text
    room = num_keys * _CHARACTERS_A_KEY + _GOES_ON_CHARS
    last = len(text) - settings.suffix_chars - room
    if last <= settings.prefix_chars:
        return None
    for _ in range(_TRIES):
        line_end = text.find("\n", chance.randrange(settings.prefix_chars, last))
        if line_end < 0:
            continue
        begin = _after_key(text, line_end)
        ends = _typed(text, begin, num_keys)
        resume = text.find("\n", ends[-1] + _GOES_ON_CHARS)
        if len(ends) == num_keys + 1 and 0 <= resume <= len(text) - settings.suffix_chars:
            start = begin - settings.prefix_chars
            after = text[resume : resume + settings.suffix_chars]
            return Stretch(text[start:resume], tuple(end - start for end in ends), after)
    return None


def _python_files(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in _SKIPPED_FOLDERS]
        yield from (Path(folder, name).relative_to(root) for name in files if name.endswith(".py"))


def _folder_files(root: Path, pattern: str) -> Iterator[SourceFile]:
    """Yield a folder's files by path, without hidden, huge and unreadable ones."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if any(part.startswith(".") for part in name.parts) or not name.match(pattern) or not path.is_file():
            continue
        if path.stat().st_size > _MAX_FOLDER_FILE_BYTES:
            continue
        try:
            yield SourceFile(name.as_posix(), path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue


def _typed(text: str, begin: int, num_keys: int) -> list[int]:
    """Return the cursor offsets before the first key and after each key, up to the text's end."""
    ends = [begin]
    while len(ends) <= num_keys and ends[-1] < len(text):
        ends.append(_after_key(text, ends[-1]))
    return ends


def _after_key(text: str, at: int) -> int:
    """Return the cursor offset after the key for the character at `at`; Enter also inserts the indentation."""
    end = at + 1
    if text[at] == "\n":
        while end < len(text) and text[end] in " \t":
            end += 1
    return end
