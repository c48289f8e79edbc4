"""Traces of recorded arrivals."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import (
    Trace,
    Trigger,
    TypedRequest,
    make_trace,
)


def of(**fields: Any) -> Scenario:
    return Scenario.of({"name": "made", "sessions": 12, "duration_s": 20, "seed": "seed", **fields})


def all_requests(trace: Trace) -> Iterator[TypedRequest]:
    return (request for session in trace.sessions for request in session.requests)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A few small files: schedules of them are made quickly."""
    root = tmp_path_factory.mktemp("documents")
    for number in range(5):
        lines = (f"def f{number}_{line}(x):\n    return x + {line}\n" for line in range(400))
        (root / f"{number}.py").write_text("\n".join(lines))
    return str(root)


@pytest.fixture
def arrivals(tmp_path: Path) -> str:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    rows += [f"2023-11-16 18:17:{second:02}.5000000,{100 * second},{100 * second}" for second in range(8)]
    (tmp_path / "arrivals.csv").write_text("\n".join(rows))
    return str(tmp_path / "arrivals.csv")


def test_recorded_arrivals_go_round_the_sessions(arrivals: str) -> None:
    scenario = of(sessions=3, recorded={"file": arrivals, "scale": 2, "max_tokens": 128})
    found = make_trace(scenario)
    assert [[request.intended_at_s for request in session.requests] for session in found.sessions] == [
        [0.0, 1.5, 3.0],
        [0.5, 2.0, 3.5],
        [1.0, 2.5],
    ]
    first, fourth, seventh = found.sessions[0].requests
    assert [len(request.prefix) for request in (first, fourth, seventh)] == [1, 1200, 2400]
    assert [request.max_tokens for request in (first, fourth, seventh)] == [1, 128, 128]
    assert {request.next_key_at_s for request in all_requests(found)} == {math.inf}
    assert all(request.is_pause and request.trigger is Trigger.AUTOMATIC for request in all_requests(found))
    assert make_trace(scenario, 1, 2).sessions == (found.sessions[1],)


def test_recorded_lengths_are_bounded(arrivals: str, folder: str) -> None:
    bounded = make_trace(of(sessions=1, recorded={"file": arrivals, "max_prefix_chars": 1000}))
    assert max(request.end for request in all_requests(bounded)) == 1000
    long = Path(arrivals)
    long.write_text(long.read_text().replace(",700,", ",9000000,"))
    found = make_trace(of(sessions=1, recorded={"file": arrivals}, documents={"source": folder}))
    [*_others, last] = found.sessions[0].requests
    longest = max(len(path.read_text()) for path in Path(folder).iterdir())
    assert len(last.prefix) + len(last.suffix) == longest, "a text longer than any file is cut"


def test_sessions_without_recorded_arrivals_send_nothing(arrivals: str) -> None:
    found = make_trace(of(sessions=10, recorded={"file": arrivals}))
    assert [len(session.requests) for session in found.sessions] == [1] * 8 + [0] * 2
    assert all(session.opening.prefix for session in found.sessions)
