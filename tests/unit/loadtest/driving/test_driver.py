"""The open-loop driver on targets in this process and on HTTP servers, its records, and the counters that it reads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from loadtest.driving.driver import Callbacks, Driver, drive
from loadtest.processes.meter import MetricsError, sum_counter
from loadtest.targets import ClientSettings, TargetSpec
from loadtest.targets.http import HttpTarget
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.typed import Trace, Trigger
from tests.unit.loadtest.driving.fake_servers import (
    METRICS,
    Completions,
    doing,
    http_target,
    outcomes,
    until,
)
from tests.unit.loadtest.typed import GOES_ON, trace


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
    target = Prompt()
    first, second, third = trace((0.0, 9.0), (0.01, 9.0), (0.02, 9.0)).sessions[0].requests
    requests = (replace(first, trigger=Trigger.PREFETCH), second, replace(third, end=third.end + 2))
    made = trace((0.0, 9.0))
    made = replace(made, sessions=(replace(made.sessions[0], requests=requests),))
    ended: list[Record] = []
    callbacks = Callbacks(due=lambda _record: None, ended=ended.append)
    await Driver(made, [target], RunClock(), callbacks, cache_entries=1).drive()
    assert [record.outcome for record in ended] == [Outcome.ANSWERED, Outcome.CACHED, Outcome.CACHED]
    assert [record.text for record in ended] == [GOES_ON, GOES_ON, GOES_ON[2:]]
    assert target.sent == [first.sequence]
    assert [record.is_sent for record in ended] == [True, False, False]


async def test_a_run_that_is_stopped_ends_at_once() -> None:
    target = Silent()
    due: list[Record] = []
    ended: list[Record] = []

    def stop(record: Record) -> None:
        due.append(record)
        driver.stop_nowait()

    driver = Driver(
        trace((0.0, 9.0), (50.0, 99.0), duration_s=60.0), [target], RunClock(), Callbacks(stop, ended.append)
    )
    assert 0 <= await driver.drive() < 30
    assert len(due) == 1
    assert [record.outcome for record in ended] == [Outcome.UNANSWERED]


async def test_requests_are_sent_regardless_of_earlier_outcomes() -> None:
    target = Silent()
    keys = [(0.01 * place, 9.0) for place in range(10)]
    run = await drive(target, trace(*keys, duration_s=0.1), drain_s=0.0, has_lead_in=False)
    assert target.sent == [result.request.sequence for result in run.results]
    assert set(outcomes(run.results)) == {"unanswered"}
    assert all(result.lag_s >= 0 for result in run.results), "none goes out before its time"


async def test_lateness_counts() -> None:
    clock = RunClock()
    late = Record(trace((-0.5, 9.0)).sessions[0].requests[0], clock)
    late.text_came("  \n")
    assert not late.has_text
    late.text_came(" x")
    result = late.result()
    assert result.lag_s >= 0.5
    assert result.ttft_s is not None
    assert result.ttft_s >= result.lag_s


async def test_only_the_first_end_counts() -> None:
    record = Record(trace((0.0, 9.0)).sessions[0].requests[0], RunClock())
    record.end(Outcome.HUNG_UP)
    record.end_whole()
    assert record.result().outcome is Outcome.HUNG_UP


def test_a_counter_is_summed_over_its_labels() -> None:
    assert sum_counter(METRICS % 5, ["none_total", "vllm:generation_tokens_total"]) == 7
    by_kind = 'tokens_total{kind="a"} 1\ntokens_total{kind="b",model="m"} 2\ntokens_total{kind="b",model="n"} 4\n'
    assert sum_counter(by_kind, ["tokens_total"], labels={"kind": "b"}) == 6
    with pytest.raises(MetricsError, match="shows no other_total"):
        sum_counter(METRICS % 5, ["other_total"])


async def test_http_requests_end_as_the_server_says() -> None:
    completions = Completions()
    keys = [(0.02 * place, 5.0) for place in range(4)]
    async with http_target(completions) as target:
        with doing(trace(*keys), 1, 5, 3, 4) as made:
            run = await drive(target, made)
    assert outcomes(run.results) == ["answered", "empty", "error", "error"]
    answered, empty, refused, broken = run.results
    assert answered.completion_tokens == empty.completion_tokens == 3
    assert answered.ttft_s is not None
    assert refused.error == "a bad prompt"
    assert "it broke" in broken.error
    assert run.generated_tokens == 10
    assert completions.bodies[0]["max_tokens"] == 1
    body = completions.bodies[1]
    assert (body["max_tokens"], body["stop_token_ids"], body["prompt"]) == (24, [7], [1])
    assert "cache_salt" not in body


async def test_http_stragglers_are_cancelled_and_unanswered() -> None:
    completions = Completions()
    async with http_target(completions) as target:
        with doing(trace((0.0, 60.0), duration_s=0.05), 2) as made:
            run = await drive(target, made, drain_s=0.05)
        await until(lambda: completions.num_hung_up == 1)
    assert outcomes(run.results) == ["unanswered"]


async def test_no_server_is_an_error_of_the_request() -> None:
    async with (
        HttpTarget(TargetSpec("fake", "openai+http", ("127.0.0.1:1",)), ClientSettings()) as target,
        target.editors(trace((0.0, 9.0))) as found,
    ):
        record = Record(trace((0.0, 9.0)).sessions[0].requests[0], RunClock())
        found[0].send_nowait(record)
        await record.wait_ended()
    assert record.result().outcome is Outcome.ERROR
