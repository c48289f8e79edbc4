"""Adds up usage records by tenant, user and day. Pure."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from completion_server.records.reading import Line
from completion_server.records.writer import Record

REQUEST, SUM = "request", "sum"
"""Kinds of usage records. A sum has the day, the number of requests and the number of each outcome."""
BY = ("tenant", "user", "day")
TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")
_DAY_LENGTH = len("2026-01-31")


class UsageSums:
    """Sums of requests: at most `max_sums`, and one for the rest of each day."""

    def __init__(self, by: Sequence[str] = BY, max_sums: float = math.inf) -> None:
        """Begin empty. `by` are some of BY."""
        self.by = by
        self.sums: dict[tuple[str, ...], Record] = {}
        """Records of the kind SUM, by the values of `by`."""
        self.broken: list[str] = []
        """FILE:LINE of each line that could not be read, and what is wrong with it."""
        self._max_sums = max_sums

    @property
    def total(self) -> Record:
        """The sum of all requests."""
        total = UsageSums(())
        for record in self.sums.values():
            total.add(dict.fromkeys(BY, "") | record)
        return total.sums.get((), _new_sum({}))

    def add(self, record: Record) -> int:
        """Add a record of either kind; return its number of requests. In a full table it counts for its day alone."""
        if record["kind"] == REQUEST:
            num_requests, outcomes, day = 1, {record["outcome"]: 1}, record["time"][:_DAY_LENGTH]
        else:
            num_requests, outcomes, day = record["requests"], record["outcomes"], record["day"]
        values = {"tenant": record["tenant"], "user": record["user"], "day": day}
        key = tuple(values[name] for name in self.by)
        if key not in self.sums and len(self.sums) >= self._max_sums:
            values |= {"tenant": "", "user": ""}
            key = tuple(values[name] for name in self.by)
        if key not in self.sums:
            self.sums[key] = _new_sum({name: values[name] for name in self.by})
        found = self.sums[key]
        found["requests"] += num_requests
        found["outcomes"].update(outcomes)
        for name in TOKENS:
            found[name] += record[name]
        return int(num_requests)

    def add_lines(self, lines: Iterable[Line]) -> None:
        """Add the records of a file."""
        for line in lines:
            try:
                if line.fault:
                    raise ValueError(line.fault)
                self.add(_checked(json.loads(line.data)))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                self.broken.append(f"{line.place}: {_describe(error)}")


def _new_sum(values: dict[str, Any]) -> Record:
    return {"kind": SUM, **values, "requests": 0, "outcomes": Counter(), **dict.fromkeys(TOKENS, 0)}


def _checked(record: Record) -> Record:
    """Return a record that was read. Raises KeyError, TypeError or ValueError if a value is missing or wrong."""
    kinds = {REQUEST: (("outcome", "time"), ()), SUM: (("day",), ("requests",))}
    if record["kind"] not in kinds:
        msg = f"unknown kind {str(record['kind'])[:40]!r}"
        raise ValueError(msg)
    texts, counts = kinds[record["kind"]]
    for name in ("tenant", "user", *texts):
        if not isinstance(record[name], str):
            msg = f"{name} must be text"
            raise TypeError(msg)
    numbers = {name: record[name] for name in (*TOKENS, *counts)} | (record["outcomes"] if counts else {})
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            msg = f"{name} must be a whole number"
            raise TypeError(msg)
    return record


def _describe(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"has no {error.args[0]}"
    return "is no JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)
