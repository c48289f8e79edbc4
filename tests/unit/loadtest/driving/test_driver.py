"""The open-loop driver on targets in this process, its records, the turns of targets, and signals during a run."""

import signal
from dataclasses import replace
from typing import Any

import pytest

from loadtest.driving.driver import Callbacks, Driver
from loadtest.driving.run import plan
from loadtest.driving.worker_pool import Interruption
from loadtest.processes.meter import MetricsError, sum_counter
from loadtest.targets import parse_target
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trigger
from tests.unit.loadtest.driving.fake_servers import METRICS
from tests.unit.loadtest.typed import GOES_ON, trace

SPECS = [parse_target(f"{name}=grpc://127.0.0.1:1") for name in ("a", "b", "c")]


class Prompt:
    """A target that answers at once with the text that the user types next."""

    name = "prompt"
    is_connected = True

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send_nowait(self, record: Record, _max_tokens: int | None = None) -> None:
        self.sent.append(record.request.sequence)
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


def test_the_first_signal_is_noted_and_the_second_is_not_held_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        assert not interruption.is_asked
        signal.raise_signal(signal.SIGTERM)
        assert interruption.is_asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
