"""The engines of a simulation, virtual time, and the requests that each figure counts."""

import asyncio
import random
import statistics
import time
from dataclasses import replace

import pytest

from completion_server.core.outcome import FinishReason
from completion_server.engine.scripted.model import ServiceTimes
from loadtest.simulation import workload as workload_module
from loadtest.simulation.engine import LARGE_MODEL, EngineProfile, measured_engine
from loadtest.simulation.virtual_time import DeadlockError, LoopClock, run
from loadtest.simulation.workload import Policy, SimulatedRequest, SimulatedResult, Workload, figures_of, is_seen
from loadtest.simulation.world import simulate

STEPS = EngineProfile(
    ServiceTimes(step_base_s=0.010, prefill_per_seq_s=0.002, prefill_per_token_s=0.001, decode_per_seq_s=0.002),
    mean_tokens=4,
    most_tokens=4,
    mean_prompt_tokens=1,
    has_full_batch=True,
)


def typed(user: int, at: float) -> SimulatedRequest:
    return SimulatedRequest(user, at, 1000.0, is_pause=True)


def served(monkeypatch: pytest.MonkeyPatch, profile: EngineProfile, *requests: SimulatedRequest) -> list[list[float]]:
    """Return the times of each request's first text and end, in milliseconds."""
    monkeypatch.setattr(workload_module, "measured_engine", lambda: profile)
    results = simulate(Workload(engine="measured", num_slots=32), Policy(), requests)
    results.sort(key=lambda result: result.request.user)
    return [[round(1000 * at, 3) for at in _times_s(result)] for result in results]


def _times_s(result: SimulatedResult) -> tuple[float, float]:
    assert result.first_text_at is not None
    return result.first_text_at, result.ended_at


def test_the_capacity_of_independent_slots_is_their_number_by_the_service_time() -> None:
    assert LARGE_MODEL.service_s == pytest.approx(0.205)
    assert LARGE_MODEL.capacity_per_s(8) == pytest.approx(8 / 0.205)


def test_the_capacity_of_steps_is_that_of_a_full_batch() -> None:
    # 16 answers of four tokens: four steps of 10 + 16 * 2 ms, and a millisecond for each prompt.
    assert STEPS.capacity_per_s(32) == pytest.approx(16 / (4 * 0.042 + 16 * 0.001))
    busy = replace(STEPS, request_cpu_s=0.003)
    assert busy.capacity_per_s(32) == pytest.approx(16 / (4 * 0.042 + 16 * 0.004))
    assert STEPS.capacity_per_s(1) == pytest.approx(1 / (4 * 0.012 + 0.001))
    no_base = replace(STEPS, times=replace(STEPS.times, step_base_s=0.0))
    assert no_base.capacity_per_s(32) == pytest.approx(16 / (4 * 0.032 + 16 * 0.001))


def test_a_prompt_takes_time_in_the_steps_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, STEPS, typed(0, 0.0)) == [[13, 49]]
    # The second comes in the step that ends at 25; the next step has its prompt, too.
    assert served(monkeypatch, STEPS, typed(0, 0.0), typed(1, 0.020)) == [[13, 54], [40, 78]]


def test_the_work_of_a_request_lengthens_the_step_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = replace(STEPS, request_cpu_s=0.005)
    assert served(monkeypatch, busy, typed(0, 0.0)) == [[18, 54]]
    far = replace(STEPS, front_end_s=0.004)
    assert served(monkeypatch, far, typed(0, 0.0)) == [[17, 53]]
    assert far.first_text_s == pytest.approx(0.017)


def test_requests_have_the_sizes_of_the_profile() -> None:
    profile, chance = replace(STEPS, mean_tokens=8, most_tokens=24, mean_prompt_tokens=30), random.Random(1)
    tokens = [profile.draw_tokens(chance) for _ in range(2000)]
    assert {1, 24} <= set(tokens) <= set(range(1, 25))
    assert 6 < statistics.mean(tokens) < 9  # the longest are cut off
    prompts = [profile.draw_prompt_tokens(chance) for _ in range(2000)]
    assert (min(prompts), max(prompts)) == (1, 59)
    assert statistics.mean(prompts) == pytest.approx(30, rel=0.05)
    assert {STEPS.draw_tokens(chance) for _ in range(10)} == {4}


def test_the_measured_engine_is_slower_with_more_generations_and_longer_prompts() -> None:
    times = measured_engine().times
    assert 0 < times.step_s(0, 1, 0) < times.step_s(0, 16, 0) < 16 * times.step_s(0, 1, 0)
    assert times.step_s(30, 4, 0) < times.step_s(300, 4, 0)


def test_the_measured_engine_is_overloaded_at_four_times_its_capacity() -> None:
    found = []
    for load in (0.5, 4.0):
        at = Workload(load=load, seconds=5, engine="measured", num_slots=32, hangs_up=True, shed_budget_s=0.2)
        results = simulate(at, Policy(), at.requests())
        ttfts = [result.ttft_s for result in results if result.ttft_s]
        found.append((len(ttfts) / len(results), statistics.median(ttfts)))
    assert found[0][0] > 0.75
    assert found[1][0] < 0.5
    assert found[0][1] < found[1][1] <= 0.25


def test_hours_pass_at_once_and_in_order() -> None:
    async def wait(seconds: float, log: list[tuple[str, float]], name: str) -> None:
        await asyncio.sleep(seconds)
        log.append((name, LoopClock().now()))

    async def main() -> list[tuple[str, float]]:
        log: list[tuple[str, float]] = []
        await asyncio.gather(wait(7200.0, log, "slow"), wait(0.001, log, "quick"), wait(7200.0, log, "second"))
        return log

    started = time.monotonic()
    assert run(main()) == [("quick", 0.001), ("slow", 7200.0), ("second", 7200.0)]
    assert time.monotonic() - started < 5.0


def test_timeouts_are_virtual_too() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main()) == 3600.0


def test_time_stands_still_while_there_is_work() -> None:
    async def main() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0.0


def test_a_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run(main())


WORKLOAD = Workload(seconds=10, budget_s=0.250, look_s=0.200)


def result(
    ttft_s: float | None = 0.1,
    next_key_after_s: float = 1.0,
    reason: FinishReason = FinishReason.LENGTH,
    at: float = 5.0,
    slot_s: float = 0.2,
) -> SimulatedResult:
    request = SimulatedRequest(0, at, at + next_key_after_s, is_pause=next_key_after_s >= 0.45)
    ended_at = at + 0.4
    first_text_at = None if ttft_s is None else at + ttft_s
    return SimulatedResult(request, reason, None if ttft_s is None else ended_at - slot_s, first_text_at, ended_at)


@pytest.mark.parametrize(
    ("ttft_s", "next_key_after_s", "seen"),
    [(0.1, 0.31, True), (0.1, 0.29, False), (0.24, 9.0, True), (0.26, 9.0, False), (None, 9.0, False)],
)
def test_a_seen_completion_comes_in_time_and_stands_for_a_while(
    ttft_s: float | None, next_key_after_s: float, *, seen: bool
) -> None:
    assert is_seen(result(ttft_s, next_key_after_s), WORKLOAD) is seen


def test_a_hurried_user_has_less_time() -> None:
    hurried = replace(WORKLOAD, hurried_s=0.090)
    patient = result(0.1)
    assert is_seen(patient, hurried)
    assert not is_seen(replace(patient, request=replace(patient.request, user=1)), hurried)


def test_only_requests_between_lead_and_trail_count() -> None:
    found = figures_of([result(at=at) for at in (0.5, 1.9, 2.0, 11.9, 12.0)], WORKLOAD)
    assert found.offered_per_s == 0.2
    assert found.load == pytest.approx(0.2 / (8 / 0.205))


def test_shares_and_percentiles() -> None:
    superseded = result(0.2, 0.2, FinishReason.SUPERSEDED, slot_s=0.1)
    hung_up = result(None, 0.1, FinishReason.CANCELLED)
    shed = result(None, 1.0, FinishReason.SHED)
    late = result(0.3, 1.0)
    found = figures_of([result(), superseded, hung_up, shed, late], WORKLOAD)
    assert (found.seen_per_s, found.seeable_per_s, found.pauses_per_s) == (0.1, 0.3, 0.3)
    assert found.pauses_answered_share == pytest.approx(1 / 3)
    assert (found.shed_share, found.superseded_share) == (0.2, 0.4)
    assert found.wasted_share == pytest.approx(0.3 / 0.5)
    assert found.pause_ttft_ms == pytest.approx((100, 300, 300))
    assert found.ttft_ms == pytest.approx((200, 300, 300))


def test_of_nothing_there_are_no_shares() -> None:
    found = figures_of([], WORKLOAD)
    assert (found.offered_per_s, found.seen_per_s) == (0, 0)
    assert (found.pauses_answered_share, found.ttft_ms, found.shed_share, found.wasted_share) == (None,) * 4
