"""The simulated world: its times, that nothing is left behind, and that the default policy is the best one."""

import asyncio
import logging
import statistics
from contextlib import aclosing

import pytest

from completion_server.admission.gate import AdmissionSettings
from completion_server.core.outcome import FinishReason
from completion_server.engine.interface import EngineStats, GenerationRequest
from completion_server.engine.scripted.model import LARGE_MODEL_ON_A_GPU
from completion_server.scheduling.queue import ORDERS
from completion_server.scheduling.settings import SchedulingSettings, ShedSettings
from completion_server.scheduling.shedding import Shedding
from loadtest.simulation import virtual_time
from loadtest.simulation.engine import SlotEngine
from loadtest.simulation.workload import Policy, PolicyFigures, SimulatedRequest, SimulatedResult, Workload, figures_of
from loadtest.simulation.world import LeftoverError, simulate

PATIENT = Workload(num_slots=8, budget_s=10)


def typed(user: int, at: float, next_key_at: float = 1000.0) -> SimulatedRequest:
    return SimulatedRequest(user, at, next_key_at, is_pause=True)


def times_ms(results: list[SimulatedResult]) -> list[tuple[int, float, float]]:
    """Return each user's first text and end, in milliseconds from the start."""
    found = [(r.request.user, round(1000 * (r.first_text_at or 0), 3), round(1000 * r.ended_at, 3)) for r in results]
    return sorted(found)


def figures(load: float, policy: Policy, **workload: float) -> PolicyFigures:
    at = Workload(load=load, seconds=10, **workload)  # type: ignore[arg-type]
    return figures_of(simulate(at, policy, at.requests()), at)


@pytest.mark.parametrize("engine", ["slots", "steps"])
def test_a_request_alone_has_its_text_after_45_ms_and_ends_after_205(engine: str) -> None:
    workload = Workload(engine=engine)  # type: ignore[arg-type]
    assert times_ms(simulate(workload, Policy(), [typed(0, 0.0)])) == [(0, 45, 205)]


@pytest.mark.parametrize("num", [8, 128])
def test_requests_that_come_together_take_no_longer_than_the_model_says(num: int) -> None:
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


def test_prefills_vary_if_configured() -> None:
    ttfts = times_ms(simulate(Workload(prefill_sigma=0.4), Policy(), [typed(user, float(user)) for user in range(50)]))
    took = sorted(first - 1000 * user for user, first, _ in ttfts)
    assert took[5] < 40
    assert took[-5] > 55


def test_an_aborted_generation_leaves_the_engine_at_once() -> None:
    async def main() -> None:
        engine = SlotEngine(LARGE_MODEL_ON_A_GPU)
        await engine.start()
        async with aclosing(engine.generate(GenerationRequest("a", [1], 21))) as outputs:
            await anext(outputs)
            assert engine.stats().num_running == 1
        assert engine.stats().num_running == 0
        assert asyncio.get_running_loop().time() == pytest.approx(0.045)

    virtual_time.run(main())


def test_the_ninth_request_waits_for_a_slot() -> None:
    results = simulate(PATIENT, Policy(), [typed(user, 0.0) for user in range(9)])
    assert times_ms(results)[-1] == (8, 250, 410)


def test_a_newer_request_ends_the_older_unless_that_is_switched_off() -> None:
    requests = [typed(0, 0.0, 0.05), typed(0, 0.1)]
    reasons = [result.reason for result in simulate(PATIENT, Policy(), requests)]
    assert reasons == [FinishReason.SUPERSEDED, FinishReason.LENGTH]
    reasons = [result.reason for result in simulate(PATIENT, Policy(supersede=False), requests)]
    assert reasons == [FinishReason.LENGTH, FinishReason.LENGTH]


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


def test_the_default_policy_is_the_configured_default() -> None:
    scheduling = SchedulingSettings()
    assert Policy() == Policy(scheduling.order, ShedSettings().when, scheduling.supersede)


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


def test_with_some_hurried_users_earliest_deadline_beats_first_come() -> None:
    found = [figures(4, Policy(order), hurried_s=0.120).seen_per_s for order in ("earliest_deadline", "first_come")]
    assert found[0] > 1.2 * found[1]


def test_overload_collapses_without_shedding_and_sooner_without_superseding() -> None:
    assert figures(4, Policy()).seen_per_s > 3 * figures(4, Policy(shed="never")).seen_per_s
    assert figures(2, Policy("first_come", "never", supersede=False)).seen_per_s < 0.5


def test_shedding_on_arrival_is_no_better_than_shedding_late() -> None:
    assert figures(4, Policy()).seen_per_s > figures(4, Policy(shed="predicted")).seen_per_s


def test_requests_left_behind_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotEngine, "stats", lambda _engine: EngineStats(num_running=2))
    with pytest.raises(LeftoverError, match="2 generations in the engine"):
        simulate(Workload(), Policy(), [typed(0, 0.0)])


def test_ten_thousand_sessions_end_once_each_and_the_same_in_every_run(caplog: pytest.LogCaptureFixture) -> None:
    workload = Workload(load=2.4, num_slots=128, num_sessions=10_000, seconds=1)
    requests = workload.requests()
    assert len({request.user for request in requests}) > 700
    with caplog.at_level(logging.ERROR):
        # `simulate` itself raises LeftoverError where anything is left in the book or the engine.
        results = simulate(workload, Policy(), requests)
    assert not caplog.records
    assert len(results) == len(requests) > 4000
    assert {id(result.request) for result in results} == {id(request) for request in requests}
    found = figures_of(results, workload)
    assert 1200 < found.offered_per_s < 1800
    assert found.seen_per_s > 200
    assert figures_of(simulate(workload, Policy(), workload.requests()), workload) == found


def ttft_p99_ms_beside_an_abuser(requests_per_s: float, workload: Workload, user_requests_per_s: float) -> float:
    """Return the 99th percentile of everybody else's TTFT while one user asks so often."""
    abuser = 1_000_000
    num = int(requests_per_s * (workload.seconds + 3))
    abuses = [
        SimulatedRequest(abuser, at / requests_per_s, (at + 1) / requests_per_s, is_pause=False) for at in range(num)
    ]
    requests = sorted([*workload.requests(), *abuses], key=lambda request: request.at)
    results = simulate(workload, Policy(user_requests_per_s=user_requests_per_s), requests)
    ttfts = [r.ttft_s for r in results if r.request.user != abuser and workload.counts(r.request) and r.ttft_s]
    return 1000 * statistics.quantiles(ttfts, n=100)[98]


def test_one_user_who_asks_a_thousand_times_a_second_does_not_move_the_others_p99_by_a_tenth() -> None:
    # "steps": the abuser's prompts delay the whole batch, so the engine can serve only 0.45 of the slots.
    workload = Workload(load=0.45, seconds=4, num_slots=32, engine="steps")
    alone = ttft_p99_ms_beside_an_abuser(1e-4, workload, 0)
    limited = ttft_p99_ms_beside_an_abuser(1000, workload, AdmissionSettings().user_requests_per_s)
    assert limited <= 1.1 * alone
