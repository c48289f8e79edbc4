"""The simulated world: its engines, its time, that nothing is left behind, and that the default policy is the best."""

import asyncio
import logging

import pytest

from completion_server.core.outcome import FinishReason
from completion_server.engine.interface import EngineStats
from completion_server.requests.scheduling.queue import ORDERS
from completion_server.requests.scheduling.shedding import Shedding
from loadtest.simulation import virtual_time
from loadtest.simulation.engine import SlotEngine
from loadtest.simulation.virtual_time import DeadlockError, LoopClock
from loadtest.simulation.workload import (
    Policy,
    PolicyFigures,
    SimulatedRequest,
    SimulatedResult,
    Workload,
    figures_of,
)
from loadtest.simulation.world import LeftoverError, simulate

PATIENT = Workload(num_slots=8, budget_s=10)


def typed(user: int, at: float, next_key_at: float = 1000.0) -> SimulatedRequest:
    return SimulatedRequest(user, at, next_key_at, is_pause=True)


def times_ms(results: list[SimulatedResult]) -> list[tuple[int, float, float]]:
    """Return each user's first text and end, in milliseconds from the start."""
    found = [(r.request.user, round(1000 * (r.first_text_at or 0), 3), round(1000 * r.ended_at, 3)) for r in results]
    return sorted(found)


def figures(load: float, policy: Policy, **workload: float) -> PolicyFigures:
    at = Workload(load=load, seconds=6, **workload)  # type: ignore[arg-type]
    return figures_of(simulate(at, policy, at.requests()), at)


@pytest.mark.parametrize("engine", ["slots", "steps"])
def test_a_request_alone_has_its_text_after_45_ms_and_ends_after_205(engine: str) -> None:
    workload = Workload(engine=engine)  # type: ignore[arg-type]
    assert times_ms(simulate(workload, Policy(), [typed(0, 0.0)])) == [(0, 45, 205)]


@pytest.mark.parametrize("num", [8, 128])
def test_requests_that_come_together_take_no_longer_than_the_model_says_if_they_have_slots(num: int) -> None:
    results = simulate(PATIENT, Policy(), [typed(user, 0.0) for user in range(9)])
    assert times_ms(results)[-1] == (8, 250, 410)
    together = [typed(user, 0.0) for user in range(num)]
    results = simulate(Workload(num_slots=num), Policy(), together)
    assert times_ms(results) == [(user, 45, 205) for user in range(num)]
    # The first step begins with the first request; all others are in the second, which decodes, too.
    results = simulate(Workload(num_slots=num, engine="steps"), Policy(), together)
    assert times_ms(results) == [(0, 45, 250), *((user, 98, 258) for user in range(1, num))]


def test_a_prompt_delays_the_batch_only_where_it_is_computed_in_steps() -> None:
    requests = [typed(0, 0.0), typed(1, 0.100)]
    assert times_ms(simulate(Workload(engine="slots"), Policy(), requests)) == [(0, 45, 205), (1, 145, 305)]
    # The second comes in the step that ends at 101 ms; the next one takes 8 ms for the first and 45 for the second.
    assert times_ms(simulate(Workload(engine="steps"), Policy(), requests)) == [(0, 45, 250), (1, 154, 314)]


@pytest.mark.parametrize("supersede", [True, False])
def test_a_newer_request_ends_the_older_unless_that_is_switched_off(supersede: bool) -> None:
    results = simulate(PATIENT, Policy(supersede=supersede), [typed(0, 0.0, 0.05), typed(0, 0.1)])
    older = FinishReason.SUPERSEDED if supersede else FinishReason.LENGTH
    assert [result.reason for result in results] == [older, FinishReason.LENGTH]


def test_an_editor_that_hangs_up_frees_the_slot_at_its_next_key() -> None:
    requests = [typed(0, 0.0, 0.060), typed(0, 0.110)]
    older, newer = simulate(Workload(hangs_up=True), Policy(), requests)
    assert (older.reason, older.ended_at) == (FinishReason.CANCELLED, 0.060)
    assert (newer.reason, newer.ttft_s) == (FinishReason.LENGTH, pytest.approx(0.045))


def test_a_hurried_users_request_ends_at_its_deadline() -> None:
    hurried = Workload(num_slots=1, hurried_s=0.120)
    assert [hurried.budget_s_of(typed(user, 0.0)) for user in (0, 1)] == [0.250, 0.120]
    first, second = simulate(hurried, Policy(shed="never"), [typed(0, 0.0), typed(1, 0.010)])
    assert (first.request.user, first.reason, first.ended_at) == (1, FinishReason.DEADLINE, pytest.approx(0.130))
    assert (second.reason, second.ended_at) == (FinishReason.LENGTH, pytest.approx(0.205))


def test_at_low_load_every_policy_serves_every_user() -> None:
    for order in ORDERS:
        for shed in Shedding:
            found = figures(0.3, Policy(order, shed.value))
            assert found.seen_per_s > 0.97 * found.seeable_per_s


@pytest.mark.parametrize(("engine", "load"), [("slots", 2), ("slots", 4), ("steps", 2)])
def test_the_default_policy_serves_overload_best(engine: str, load: float) -> None:
    best = figures(load, Policy(), engine=engine)  # type: ignore[arg-type]
    for shed in Shedding:
        newest = figures(load, Policy("newest_first", shed.value), engine=engine)  # type: ignore[arg-type]
        assert best.seen_per_s > 1.1 * newest.seen_per_s
        assert (best.pauses_answered_share or 0) > 1.2 * (newest.pauses_answered_share or 0)


def test_what_each_part_of_the_default_policy_is_good_for() -> None:
    overload = figures(4, Policy()).seen_per_s
    assert overload > 3 * figures(4, Policy(shed="never")).seen_per_s, "shedding"
    assert overload > figures(4, Policy(shed="predicted")).seen_per_s, "shedding late"
    assert figures(2, Policy("first_come", "never", supersede=False)).seen_per_s < 0.5, "superseding"
    hurried = [figures(4, Policy(order), hurried_s=0.120).seen_per_s for order in ("earliest_deadline", "first_come")]
    assert hurried[0] > 1.2 * hurried[1], "the order of deadlines"


def test_requests_left_behind_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotEngine, "stats", lambda _engine: EngineStats(num_running=2))
    with pytest.raises(LeftoverError, match="2 generations in the engine"):
        simulate(Workload(), Policy(), [typed(0, 0.0)])


def test_ten_thousand_sessions_end_once_each_and_the_same_in_every_run(caplog: pytest.LogCaptureFixture) -> None:
    workload = Workload(load=2.4, num_slots=128, num_sessions=10_000, seconds=0.4)
    requests = workload.requests()
    assert len({request.user for request in requests}) > 700
    with caplog.at_level(logging.ERROR):
        # `simulate` itself raises LeftoverError where anything is left in the book or the engine.
        results = simulate(workload, Policy(), requests)
    assert not caplog.records
    assert len(results) == len(requests) > 3000
    assert {id(result.request) for result in results} == {id(request) for request in requests}
    found = figures_of(results, workload)
    assert 1200 < found.offered_per_s < 1800
    assert found.seen_per_s > 200
    assert figures_of(simulate(workload, Policy(), workload.requests()), workload) == found


async def wait(seconds: float, log: list[tuple[str, float]], name: str) -> None:
    await asyncio.sleep(seconds)
    log.append((name, LoopClock().now()))


async def wait_together() -> list[tuple[str, float]]:
    """Wait after a hundred turns of the loop, for which time stands still."""
    log: list[tuple[str, float]] = []
    for _ in range(100):
        await asyncio.sleep(0)
    await asyncio.gather(wait(7200.0, log, "slow"), wait(0.001, log, "quick"), wait(7200.0, log, "second"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3600.0):
            await asyncio.Event().wait()
    log.append(("timeout", LoopClock().now()))
    return log


def test_hours_pass_at_once_and_in_order_and_a_deadlock_is_an_error() -> None:
    expected = [("quick", 0.001), ("slow", 7200.0), ("second", 7200.0), ("timeout", 10_800.0)]
    assert virtual_time.run(wait_together()) == expected
    with pytest.raises(DeadlockError):
        virtual_time.run(asyncio.Event().wait())
