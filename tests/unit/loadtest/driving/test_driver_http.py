"""The open-loop driver and the closed-loop capacity against HTTP and gRPC servers on loopback."""

import pytest

from loadtest.bench.scheduler.capacity import completions_per_s, measure_capacity
from loadtest.driving.driver import drive
from loadtest.targets import ClientSettings, TargetError, TargetSpec
from loadtest.targets.http import HttpTarget
from loadtest.targets.record import Outcome, Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.trace import OPENING_SEQUENCE
from tests.unit.loadtest.driving.fake_servers import (
    Completions,
    Editors,
    doing,
    http_target,
    outcomes,
    session_target,
    until,
)
from tests.unit.loadtest.typed import trace


async def test_capacity_counts_whole_answers_closed_loop() -> None:
    editors = Editors({OPENING_SEQUENCE + 2: "shed"})
    async with session_target(editors) as target:
        made = trace(*((float(at), at + 1.0) for at in range(200)), num_sessions=2)
        rate = await completions_per_s(target, made, 20.0)
        measured = await measure_capacity(target, (1, 2), 0.05, Scenario(name="capacity"))
    assert rate > 10
    assert set(measured.by_concurrency) == {1, 2}
    assert measured.completions_per_s == max(measured.by_concurrency.values()) > 0
    sequences = [
        request.sequence for request in editors.requests if request.session_id == editors.requests[0].session_id
    ]
    assert sequences == sorted(sequences)


async def test_capacity_of_a_target_that_fails_is_an_error() -> None:
    async with session_target(Editors({OPENING_SEQUENCE + 2: "error"})) as target:
        with pytest.raises(TargetError, match="a field is bad"):
            await completions_per_s(target, trace((0.0, 1.0), (1.0, 2.0)), 20.0)


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


async def test_http_editors_hang_up_at_the_next_key() -> None:
    completions = Completions()
    async with http_target(completions) as target:
        with doing(trace((0.0, 0.1), (0.15, 5.0), num_sessions=2), 2, 1) as made:
            run = await drive(target, made)
            await until(lambda: completions.num_hung_up == 2)
    assert outcomes(run.results) == ["hung_up", "answered"] * 2
    hung_up = run.results[0]
    assert hung_up.completion_tokens == 2
    assert hung_up.ttft_s is not None
    assert hung_up.ended_at_s is not None
    assert hung_up.ended_at_s >= 0.1


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
