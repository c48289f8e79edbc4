"""Sums of drafted and accepted tokens over a window of time."""

import pytest

from completion_server.engine.interface import EngineStep
from completion_server.speculation.figures import FiguresWindow


class ManualClock:
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at


def test_an_empty_window() -> None:
    figures = FiguresWindow(ManualClock()).read()
    assert (figures.num_tokens, figures.num_drafted, figures.tokens_per_s) == (0, 0, 0.0)
    assert figures.acceptance is None
    assert figures.mean_accepted_length is None
    assert figures.acceptance_by_position == ()


def test_sums_by_position() -> None:
    clock = ManualClock()
    window = FiguresWindow(clock)
    window.add(EngineStep(num_seqs=4, num_tokens=7, drafted=(4, 4), accepted=(2, 1)))
    clock.at += 0.5
    window.add(EngineStep(num_seqs=2, num_tokens=6, drafted=(2, 2, 2), accepted=(2, 1, 1)))
    window.add(EngineStep(num_seqs=1, num_tokens=1))
    clock.at += 9.5
    figures = window.read()
    assert figures.seconds == pytest.approx(10)
    assert (figures.num_tokens, figures.tokens_per_s) == (14, pytest.approx(1.4))
    assert (figures.drafted, figures.accepted) == ((6, 6, 2), (4, 2, 1))
    assert (figures.num_drafted, figures.num_accepted, figures.num_wasted) == (14, 7, 7)
    assert figures.acceptance == pytest.approx(0.5)
    assert figures.acceptance_by_position == pytest.approx((4 / 6, 2 / 6, 1 / 2))
    assert figures.mean_accepted_length == pytest.approx(1 + 7 / 6)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    clock = ManualClock()
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
