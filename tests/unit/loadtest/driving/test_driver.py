"""The open-loop driver on targets in this process, its records, the turns of targets, and signals during a run."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from loadtest.driving.driver import Callbacks, Driver, drive
from loadtest.driving.run import BlocksError, join, plan
from loadtest.driving.worker_pool import Interruption
from loadtest.processes.meter import MetricsError, sum_counter
from loadtest.stats import RunStats
from loadtest.targets import parse_target
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace, Trigger
from tests.unit.loadtest.driving.fake_servers import METRICS, outcomes
from tests.unit.loadtest.typed import GOES_ON, request, trace

SPECS = [parse_target(f"{name}=grpc://127.0.0.1:1") for name in ("a", "b", "c")]


class Silent:
    """A target that never says anything, and counts nothing."""

    name = "silent"
    is_connected = True

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.num_connected = 0
        self.reconnects_s: list[float] = []

    @asynccontextmanager
    async def editors(self, made: Trace) -> AsyncIterator[list["Silent"]]:
        yield [self for _ in made.sessions]

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        self.sent.append(record.request.sequence)

    def drop_nowait(self, host_shift: int | None = None) -> None:
        raise AssertionError(host_shift)

    async def generated_tokens(self) -> float:
        return 0.0


class Prompt(Silent):
    """A target that answers at once with the text that the user types next."""

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        super().send_nowait(record, max_tokens)
        record.text_came(record.request.truth)
        record.end_whole()


async def test_typing_the_text_of_a_completion_sends_no_request() -> None:
    target, made, ended = Prompt(), trace((0.0, 9.0), (0.01, 9.0), (0.02, 9.0)), list[Record]()
    first, second, third = made.sessions[0].requests
    requests = (replace(first, trigger=Trigger.PREFETCH), second, replace(third, end=third.end + 2))
    made = replace(made, sessions=(replace(made.sessions[0], requests=requests),))
    callbacks = Callbacks(due=lambda _record: None, ended=ended.append)
    await Driver(made, [target], RunClock(), callbacks, cache_entries=1).drive()
    assert [(record.outcome, record.text, record.is_sent) for record in ended] == [
        (Outcome.ANSWERED, GOES_ON, True),
        (Outcome.CACHED, GOES_ON, False),
        (Outcome.CACHED, GOES_ON[2:], False),
    ]
    assert target.sent == [first.sequence]


async def test_a_run_that_is_stopped_ends_at_once() -> None:
    due, ended = list[Record](), list[Record]()

    def stop(record: Record) -> None:
        due.append(record)
        driver.stop_nowait()

    made = trace((0.0, 9.0), (50.0, 99.0), duration_s=60.0)
    driver = Driver(made, [Silent()], RunClock(), Callbacks(stop, ended.append))
    assert 0 <= await driver.drive() < 30
    assert len(due) == 1
    assert [record.outcome for record in ended] == [Outcome.UNANSWERED]


async def test_requests_are_sent_regardless_of_earlier_outcomes() -> None:
    target, keys = Silent(), [(0.01 * place, 9.0) for place in range(10)]
    run = await drive(target, trace(*keys, duration_s=0.1), drain_s=0.0, has_lead_in=False)
    assert target.sent == [result.request.sequence for result in run.results]
    assert set(outcomes(run.results)) == {"unanswered"}
    assert all(result.lag_s >= 0 for result in run.results), "none goes out before its time"


async def test_lateness_counts_and_only_the_first_end() -> None:
    late = Record(request(-0.5), RunClock())
    late.text_came("  \n")
    assert not late.has_text
    late.text_came(" x")
    late.end(Outcome.HUNG_UP)
    late.end_whole()
    assert late.outcome is Outcome.HUNG_UP
    assert late.ttft_s is not None
    assert late.ttft_s >= late.lag_s >= 0.5


def test_a_counter_is_summed_over_its_labels() -> None:
    assert sum_counter(METRICS % 5, ["none_total", "vllm:generation_tokens_total"]) == 7
    by_kind = 'tokens_total{kind="a"} 1\ntokens_total{kind="b",model="m"} 2\ntokens_total{kind="b",model="n"} 4\n'
    assert sum_counter(by_kind, ["tokens_total"], labels={"kind": "b"}) == 6
    with pytest.raises(MetricsError, match="shows no other_total"):
        sum_counter(METRICS % 5, ["other_total"])


def of(**fields: Any) -> Scenario:
    return Scenario.of({"name": "made", "duration_s": 12, "slice_s": 2, **fields})


def test_targets_have_the_whole_run_in_turn_or_meet_the_same_traffic_in_blocks() -> None:
    turns = list(plan(of(), SPECS, 1))
    assert [(turn.number, turn.num_turns, turn.spec.name) for turn in turns] == [(0, 3, "a"), (1, 3, "b"), (2, 3, "c")]
    assert all(turn.scenario == of() for turn in turns)
    turns = list(plan(of(), SPECS, 3))
    assert [turn.spec.name for turn in turns] == [*"abc", *"bca", *"cab"]
    assert {turn.scenario.duration_s for turn in turns} == {4.0}
    seeds = [turn.scenario.seed for turn in turns]
    assert seeds == [seed for seed in dict.fromkeys(seeds) for _ in SPECS]
    assert len(set(seeds)) == 3
    assert seeds == [turn.scenario.seed for turn in plan(of(), SPECS, 3)], "the same each time"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"events": [{"kind": "reconnect", "at_s": 1}]}, "has events"),
        ({"shape": {"kind": "ramp"}}, "has the shape ramp"),
        ({"duration_s": 5}, "is too short for 3 blocks"),
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
    second = block(10)
    second.duration_s = 3.1  # it was broken off
    whole = join(join(join(None, block(1)), second), block(100, frozenset({0})))
    assert whole.duration_s == 11.1
    assert [piece.counters["intended"] for piece in whole.slices] == [1, 1, 10, 10, 100, 100]
    assert whole.total.counters == {"intended": 222, "sessions": 5, "sessions_lost": 3}
    assert len(whole.total.histograms["ttft"]) == 6
    assert whole.workers == {0}, "a worker that missed a block is missing"


def test_the_first_signal_is_noted_and_the_second_is_not_held_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        assert not interruption.is_asked
        signal.raise_signal(signal.SIGTERM)
        assert interruption.is_asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
