"""The turns of targets in a run, the statistics of several turns, and signals during a run."""

import signal
from typing import Any

import pytest

from loadtest.driving.run import BlocksError, join, plan
from loadtest.driving.worker_pool import Interruption
from loadtest.stats import RunStats
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

SPECS = [parse_target(f"{name}=grpc://127.0.0.1:1") for name in ("a", "b", "c")]


def of(**fields: Any) -> Scenario:
    return Scenario.of({"name": "made", "duration_s": 12, "slice_s": 2, **fields})


def test_in_turn_each_target_has_the_whole_run() -> None:
    turns = list(plan(of(), SPECS, 1))
    assert [(turn.number, turn.num_turns, turn.spec.name) for turn in turns] == [(0, 3, "a"), (1, 3, "b"), (2, 3, "c")]
    assert all(turn.scenario == of() for turn in turns)


def test_interleaved_targets_begin_in_turn_and_meet_the_same_traffic() -> None:
    turns = list(plan(of(), SPECS, 3))
    assert [turn.spec.name for turn in turns] == [*"abc", *"bca", *"cab"]
    assert {turn.scenario.duration_s for turn in turns} == {4.0}
    seeds = [turn.scenario.seed for turn in turns]
    assert len(set(seeds)) == 3
    assert seeds == [seed for seed in dict.fromkeys(seeds) for _ in SPECS]
    assert seeds == [turn.scenario.seed for turn in plan(of(), SPECS, 3)], "the same each time"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"events": [{"kind": "reconnect", "at_s": 1}]}, "has events"),
        ({"shape": {"kind": "ramp"}}, "has the shape ramp"),
        ({"duration_s": 5}, "is too short for 3 blocks"),
        ({"recorded": {"file": "some.csv"}}, "is recorded"),
    ],
)
def test_scenarios_that_need_a_whole_run_are_not_divided(fields: dict[str, Any], why: str) -> None:
    assert len(list(plan(of(**fields), SPECS, 1))) == 3
    with pytest.raises(BlocksError, match=f"scenario made {why}"):
        list(plan(of(**fields), SPECS, 3))


def block(intended: int, workers: frozenset[int] = frozenset({0, 1})) -> RunStats:
    stats = RunStats("a", 4.0, 2.0, workers=workers, num_workers=2)
    stats.total.counters.update({"sessions": 5, "intended": 2 * intended, "sessions_lost": 1})
    for at_s in (0.5, 2.5):
        stats.slice_at(at_s).counters["intended"] += intended
        stats.total.record("ttft", 0.1)
    return stats


def test_blocks_are_appended_in_order() -> None:
    whole = None
    for stats in (block(1), block(10), block(100, frozenset({0}))):
        whole = join(whole, stats)
    assert whole is not None
    assert whole.duration_s == 12.0
    assert [piece.counters["intended"] for piece in whole.slices] == [1, 1, 10, 10, 100, 100]
    assert whole.total.counters == {"intended": 222, "sessions": 5, "sessions_lost": 3}
    assert len(whole.total.histograms["ttft"]) == 6
    assert whole.workers == {0}, "a worker that missed a block is missing"


def test_a_block_that_was_broken_off_is_the_last() -> None:
    first, second = block(1), block(10)
    first.duration_s = 3.1
    assert [piece.counters["intended"] for piece in join(first, second).slices] == [1, 1, 10, 10]


def test_the_first_signal_is_noted_and_the_second_is_not_held_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        assert not interruption.is_asked
        signal.raise_signal(signal.SIGTERM)
        assert interruption.is_asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
