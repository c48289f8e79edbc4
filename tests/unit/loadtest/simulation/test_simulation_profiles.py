"""The engines of a simulation: their capacity, their requests, and the work that shares the processors."""

import random
import statistics
from dataclasses import replace

import pytest

from completion_server.engine.scripted.model import ServiceTimes
from loadtest.simulation import workload as workload_module
from loadtest.simulation.editors import SimulatedRequest
from loadtest.simulation.profiles import LARGE_MODEL, EngineProfile, measured_engine
from loadtest.simulation.workload import Policy, SimulatedResult, Workload
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
