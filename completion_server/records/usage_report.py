"""Adds up usage records by tenant, user and day. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from completion_server.records.reading import Line
from completion_server.records.usage import REQUEST, SUM, Sums

BY = ("tenant", "user", "day")
_COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")
_DAY_LENGTH = len("2026-01-31")


@dataclass(slots=True)
class UsageReport:
    """The sums, and the lines that could not be read."""

    by: Sequence[str]
    sums: dict[tuple[str, ...], Sums] = field(default_factory=dict)
    """By the values of `by`."""
    broken: list[str] = field(default_factory=list)
    """FILE:LINE and what is wrong with it."""

    def add_lines(self, lines: Iterable[Line]) -> None:
        """Add the records of a file."""
        for line in lines:
            try:
                if line.fault:
                    raise ValueError(line.fault)
                self._add(json.loads(line.data))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                self.broken.append(f"{line.place}: {_describe(error)}")

    @property
    def total(self) -> Sums:
        """The sum of all records."""
        total = Sums()
        for sums in self.sums.values():
            total.add(sums)
        return total

    def _add(self, record: dict[str, Any]) -> None:
        kind = record["kind"]
        if kind == REQUEST:
            num_requests, outcomes, day = 1, Counter([_text(record, "outcome")]), _text(record, "time")[:_DAY_LENGTH]
        elif kind == SUM:
            outcomes = Counter({str(name): _count(record["outcomes"], name) for name in record["outcomes"]})
            num_requests, day = _count(record, "requests"), _text(record, "day")
        else:
            msg = f"unknown kind {str(kind)[:40]!r}"
            raise ValueError(msg)
        values = {"tenant": _text(record, "tenant"), "user": _text(record, "user"), "day": day}
        tokens = {name: _count(record, name) for name in _COUNTS}
        used = Sums(num_requests, **tokens, outcomes=outcomes)
        self.sums.setdefault(tuple(values[name] for name in self.by), Sums()).add(used)


def _text(record: dict[str, Any], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        msg = f"{name} must be text"
        raise TypeError(msg)
    return value


def _count(record: dict[str, Any], name: str) -> int:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        msg = f"{name} must be a whole number"
        raise TypeError(msg)
    return value


def _describe(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"has no {error.args[0]}"
    return "is no JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)
