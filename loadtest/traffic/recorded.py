"""Reads recorded arrivals: times and lengths of requests to a real service. Knows nothing of their texts.

The file is one of the Azure LLM inference traces (https://github.com/Azure/AzurePublicDataset; Patel et al.,
"Splitwise", ISCA 2024) or any CSV with the same three columns. It has no texts.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class RecordedError(ValueError):
    """A file of arrivals can't be used; the message names the line."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A recorded request."""

    at_s: float
    """Time since the first arrival."""
    context_tokens: int
    generated_tokens: int


def read_arrivals(path: Path, *, scale: float = 1.0, duration_s: float = float("inf"), rows: int = 0) -> list[Arrival]:
    """Return a file's arrivals before `duration_s` in order, sped up by `scale`; `rows` = 0 reads all rows.

    Raises:
        RecordedError: the file can't be read, a row is bad, or it has no rows.

    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = _parse(path, file.read().splitlines(), rows)
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: can't be read: {error}"
        raise RecordedError(msg) from error
    if not found:
        msg = f"{path}: holds no arrivals"
        raise RecordedError(msg)
    found.sort(key=lambda row: row[0])
    first = found[0][0]
    scaled = [Arrival((at - first).total_seconds() / scale, context, made) for at, context, made in found]
    return [arrival for arrival in scaled if arrival.at_s < duration_s]


def _parse(path: Path, lines: list[str], rows: int) -> list[tuple[datetime, int, int]]:
    reader = csv.DictReader(lines)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        msg = f"{path}, line 1: no column {missing[0]}; expected {', '.join(COLUMNS)}"
        raise RecordedError(msg)
    found: list[tuple[datetime, int, int]] = []
    for row in reader:
        if rows and len(found) == rows:
            break
        found.append(_row(path, reader.line_num, row))
    return found


def _row(path: Path, line: int, row: Mapping[str, str | None]) -> tuple[datetime, int, int]:
    stamp, context, made = (row[column] or "" for column in COLUMNS)
    try:
        at = datetime.fromisoformat(stamp.strip())
        lengths = int(context), int(made)
    except ValueError as error:
        msg = f"{path}, line {line}: {error}"
        raise RecordedError(msg) from error
    if min(lengths) < 0:
        msg = f"{path}, line {line}: lengths must be at least 0, got {min(lengths)}"
        raise RecordedError(msg)
    # The published traces name no zone; only differences count.
    return at if at.tzinfo else at.replace(tzinfo=UTC), *lengths
