"""The figures of the last minutes, and the totals."""

import pytest
from prometheus_client import CollectorRegistry

from completion_server.engine.interface import EngineStep
from completion_server.engine.speculation.figures import FiguresWindow, SpeculationTotals
from completion_server.ops.collectors import SpeculationCollector
from tests.support.clocks import ManualClock


def test_sums_by_position() -> None:
    clock = ManualClock(100.0)
    window = FiguresWindow(clock)
    empty = window.read()
    assert (empty.tokens_per_s, empty.acceptance, empty.mean_accepted_length) == (0.0, None, None)
    window.add(EngineStep(num_seqs=4, num_tokens=7, drafted=(4, 4), accepted=(2, 1)))
    clock.at += 0.5
    window.add(EngineStep(num_seqs=2, num_tokens=6, drafted=(2, 2, 2), accepted=(2, 1, 1)))
    window.add(EngineStep(num_seqs=1, num_tokens=1))
    clock.at += 9.5
    figures = window.read()
    assert (figures.num_tokens, figures.seconds, figures.tokens_per_s) == (14, 10, pytest.approx(1.4))
    assert (figures.drafted, figures.accepted) == ([6, 6, 2], [4, 2, 1])
    assert (figures.num_drafted, figures.num_accepted, figures.num_wasted) == (14, 7, 7)
    assert figures.acceptance == pytest.approx(0.5)
    assert figures.acceptance_by_position == pytest.approx((4 / 6, 2 / 6, 1 / 2))
    assert figures.mean_accepted_length == pytest.approx(1 + 7 / 6)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = ManualClock(100.0)
    window = FiguresWindow(clock, window_s=10)
    for _ in range(100):
        window.add(EngineStep(num_seqs=1, num_tokens=2, drafted=(1,), accepted=(1,)))
        clock.at += 0.5
    figures = window.read()
    assert figures.seconds == 10
    assert 18 <= figures.num_drafted <= 20
    assert figures.tokens_per_s == pytest.approx(4, rel=0.1)
    clock.at += 100
    assert window.read().num_tokens == 0


def test_steps_are_counted_by_k_and_position() -> None:
    totals = SpeculationTotals()
    totals.add(EngineStep(3, 5, drafted=(3, 2), accepted=(2, 0)))
    totals.add(EngineStep(1, 3, drafted=(1, 1), accepted=(1, 1)))
    totals.add(EngineStep(4, 4))  # K = 0
    registry = CollectorRegistry()
    registry.register(SpeculationCollector(totals))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"completion_speculation_{name}_total", labels)

    assert (value("steps", k="2"), value("steps", k="0")) == (2, 1)
    assert (value("drafted_tokens", k="2", position="1"), value("drafted_tokens", k="2", position="2")) == (4, 3)
    assert (value("accepted_tokens", k="2", position="1"), value("accepted_tokens", k="2", position="2")) == (3, 1)
    assert value("drafted_tokens", k="0", position="1") is None
