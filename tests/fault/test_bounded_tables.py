"""Millions of distinct users, sessions, documents and addresses: every table that is keyed by them stays bounded.

Each has its bound in entries, in bytes or, at a rate of new keys, in time. Time is scripted. The tables of prompts, of
completions and of traces have their bounds in the unit tests beside them.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from completion_server.api.http.dialect import Asked
from completion_server.api.http.recent import RecentRequests
from completion_server.core.outcome import ServedAnswer
from completion_server.requests.feedback import RecentAnswers
from completion_server.requests.limits.rate_limiter import RateLimiter
from completion_server.requests.scheduling.lanes import Sequences

PER_S = 1_000.0
"""New keys a second: more than the requests that a server answers."""
MAX_WAIT_S = 10.0
SWEPT = 2 * 4096
"""Entries that a limiter keeps until it looks for those that it can forget."""
MIB = 1024 * 1024


@dataclass(frozen=True)
class Table:
    """A table, how a new key gets into it, and its bound."""

    enter: Callable[[str, float], object]
    size: Callable[[], int]
    most: float


class EndedRequest:
    """A request that does not live."""

    outcome = None

    def cancel(self, _outcome: object) -> None:
        return None


def requests() -> Table:
    limiter = RateLimiter(20, 40)
    return Table(limiter.charge, lambda: limiter.num_known, SWEPT)


def tokens() -> Table:
    limiter = RateLimiter(2_000, 8_000, MAX_WAIT_S)
    most_s = 8_000 / 2_000 + MAX_WAIT_S
    return Table(lambda key, now: limiter.charge(key, now, 1e6), lambda: limiter.num_known, 2 * PER_S * most_s + SWEPT)


def sequences() -> Table:
    newest = Sequences()
    return Table(lambda key, now: newest.note(key, 1, now), lambda: len(newest), PER_S * 5.0 + 1)


def answers() -> Table:
    recent, served = RecentAnswers(max_answers=5_000), ServedAnswer(0.1, 2)
    return Table(lambda key, now: recent.add(key, 10, now, served), lambda: len(recent), 5_000)


def documents_over_http() -> Table:
    recent, numbers = RecentRequests(max_bytes=4 * MIB), itertools.count(1)

    def enter(key: str, now: float) -> None:
        asked = Asked(prefix=f"# {key}\n" * 20, document_uri=f"file:///{key}.py")
        placed = recent.place(key, asked, next(numbers), now, has_name=True)
        recent.add(placed, EndedRequest(), now)
        recent.end(placed, "answer", now)

    return Table(enter, lambda: len(recent), 4 * MIB / 1_000)


TABLES = (requests, tokens, sequences, answers, documents_over_http)


@pytest.mark.parametrize("num", [60_000, pytest.param(1_000_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("make", TABLES)
def test_a_table_stays_bounded(make: Callable[[], Table], num: int) -> None:
    table, largest = make(), 0
    for number in range(num):
        table.enter(f"user-{number}", number / PER_S)
        if number % 97 == 0:
            largest = max(largest, table.size())
    assert largest <= table.most < num
