"""Cursor positions in files, sampled for requests."""

import random
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from completion_server.client.cursor import Cursor, Position, PositionError, language_of, read_text, split_text, uri_of

_MAX_BYTES = 200_000
_MIN_LINES = 20


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A cursor position in a file."""

    uri: str
    language: str
    cursor: Cursor


def standard_library() -> list[Path]:
    """Return the Python standard library's own modules, in a fixed order."""
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def samples(files: Sequence[Path], seed: int) -> Iterator[SourcePosition]:
    """Yield endless positions within lines of code, the same for the same files and seed.

    Raises:
        PositionError: a file can't be read, or no file has enough text.

    """
    texts = [(file, text) for file, text in ((file, _text(file)) for file in files) if text.count("\n") >= _MIN_LINES]
    if not texts:
        msg = f"none of {len(files)} files holds {_MIN_LINES} lines of text in at most {_MAX_BYTES} bytes"
        raise PositionError(msg)
    chance = random.Random(seed)
    while True:
        file, text = chance.choice(texts)
        lines = text.split("\n")
        line = chance.randrange(_MIN_LINES // 2, len(lines))
        if lines[line].strip():
            indent = len(lines[line]) - len(lines[line].lstrip())
            column = chance.randint(indent + 1, len(lines[line].rstrip()) + 1)
            yield SourcePosition(
                uri_of(str(file)), language_of(file.name), split_text(text, Position(str(file), line + 1, column))
            )


def _text(file: Path) -> str:
    return read_text(str(file)) if file.stat().st_size <= _MAX_BYTES else ""
