"""The position of a cursor, FILE:LINE[:COL], and the text before and after it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

STDIN = "-"

_POSITION = re.compile(r"(?P<file>.+?)(?::(?P<line>\d+)(?::(?P<column>\d+))?)?", re.DOTALL)


class PositionError(ValueError):
    """The position does not exist; the message names the range of those that do."""


class Position(NamedTuple):
    """A cursor's position as the user writes it. Lines and columns count from 1; None is the end."""

    file: str
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """A text, split at the cursor."""

    prefix: str
    suffix: str
    line: int
    column: int

    @property
    def left(self) -> str:
        """The text of the cursor's line before the cursor."""
        return self.prefix[self.prefix.rfind("\n") + 1 :]

    @property
    def right(self) -> str:
        """The text of the cursor's line after the cursor."""
        return self.suffix.partition("\n")[0].removesuffix("\r")


def parse_position(text: str) -> Position:
    """Parse FILE[:LINE[:COL]]. A colon without a number after it belongs to the file's name.

    Raises PositionError if there is no file name, or a number is 0.
    """
    match = _POSITION.fullmatch(text)
    if match is None:
        raise PositionError("expected FILE:LINE or FILE:LINE:COL, got nothing")
    line, column = (int(number) if number else None for number in match.group("line", "column"))
    if line == 0 or column == 0:
        raise PositionError(f"lines and columns count from 1, got {text!r}")
    return Position(match.group("file"), line, column)


def split_text(text: str, position: Position) -> Cursor:
    """Split a text at a position. Raises PositionError if that is beyond the text's end."""
    name, lines = _name(position.file), text.split("\n")
    line = len(lines) if position.line is None else position.line
    if line > len(lines):
        raise PositionError(f"{name} has {_count(len(lines), 'line')}; line {line} is beyond its end")
    width = len(lines[line - 1].removesuffix("\r"))
    column = width + 1 if position.column is None else position.column
    if column > width + 1:
        size = f"line {line} of {name} has {_count(width, 'character')}"
        raise PositionError(f"{size}; its columns go from 1 to {width + 1}, got {column}")
    at = sum(len(earlier) + 1 for earlier in lines[: line - 1]) + column - 1
    return Cursor(text[:at], text[at:], line, column)


def read_text(file: str, standard_input: bytes | None = None) -> str:
    """Return a file's text, or the given standard input's if the file is "-".

    Raises PositionError if the file can't be read, or is not UTF-8.
    """
    try:
        raw = (standard_input or b"") if file == STDIN else Path(file).read_bytes()
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8 text: byte {error.object[error.start]:#04x} at offset {error.start}"
        raise PositionError(f"{_name(file)} {fault}") from error
    except OSError as error:
        raise PositionError(f"{_name(file)} can't be read: {(error.strerror or str(error)).lower()}") from error


def uri_of(file: str) -> str:
    """Return the document's URI as an editor would give it."""
    return "untitled:stdin" if file == STDIN else Path(file).absolute().as_uri()


def _name(file: str) -> str:
    return "standard input" if file == STDIN else file


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
