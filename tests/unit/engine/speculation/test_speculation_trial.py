"""What a server measures at start, and the schedule that it begins with, on engines whose best schedule is known."""

import asyncio
import logging
import math
import random
from functools import cache

import pytest

from completion_server.engine.interface import EngineDeadError, trial_ks
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.engine.speculation.comparison import GAIN
from completion_server.engine.speculation.trial import LIMIT_S, StartChoice, run_trial
from loadtest.bench.trial import MAX_LOSS, Start, Truth, measure_truth, start_once
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from tests.support.known_engines import KNOWN, make_request
from tests.support.scripted import in_virtual_time

STEPS = ServiceTimes(decode_base_s=0.01)
LOSES, GAINS_4, GAINS_8, SMALL_BATCHES = KNOWN


@cache
def truth_of(name: str) -> Truth:
    return virtual_time.run(measure_truth(KNOWN[name].make(), make_request, LoopClock(), 120.0))


def start(name: str, seed: int) -> Start:
    return virtual_time.run(start_once(KNOWN[name].make(seed), make_request, LoopClock(), random.Random(seed)))


async def run_on(engine: ScriptedEngine) -> StartChoice:
    await engine.start()
    assert engine.speculation is not None
    return await run_trial(engine, engine.speculation, make_request, LoopClock(), 10.0, random.Random(1))


@pytest.mark.parametrize(
    ("name", "num_starts"),
    [(LOSES, 4), (SMALL_BATCHES, 4), *(pytest.param(name, 20, marks=pytest.mark.full) for name in KNOWN)],
)
def test_nearly_all_starts_choose_a_schedule_within_3_percent_of_the_best(name: str, num_starts: int) -> None:
    starts = [start(name, seed) for seed in range(num_starts)]
    over = [truth_of(name).over_best(each.choice.rows, is_adjusted=True) for each in starts]
    assert sum(each >= 1 - MAX_LOSS for each in over) >= 0.95 * num_starts, sorted(over)
    assert max(each.trial_s for each in starts) < LIMIT_S + 1


def test_the_reason_has_the_gain_and_its_interval_at_each_batch_size(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        choice = start(GAINS_8, 3).choice
    assert [each.split(":")[0] for each in choice.reason.split("; ")] == [
        "K = 1 at 1 request",
        "K = 1 at 4 requests at once",
        "K = 1 at 16 requests at once",
    ]
    assert all("times (" in each for each in choice.reason.split("; "))
    assert "measuring whether drafts pay; up to 20 s" in caplog.text
    assert "measuring drafts for 3 s: 1 request: too few rounds (" in caplog.text


def test_where_no_drafts_are_chosen_the_controller_expects_no_gain() -> None:
    choice = start(LOSES, 1).choice
    assert choice.is_off
    assert max(max(gains.values()) for gains in choice.log_gains.values()) <= 0
    paying = start(GAINS_8, 1).choice
    assert paying.log_gains[16][1] == pytest.approx(math.log1p(0.08), abs=GAIN)


@pytest.mark.parametrize(("max_k", "ks"), [(1, (1,)), (2, (1, 2)), (3, (1, 3)), (4, (1, 2, 4)), (8, (1, 4, 8))])
def test_few_ks_are_measured(max_k: int, ks: tuple[int, ...]) -> None:
    assert trial_ks(max_k) == ks


@pytest.mark.parametrize(
    ("times", "reason", "within_s"),
    [
        (ServiceTimes(prefill_per_token_s=0.008), "off: the prompts alone would take longer than 20 s", 10),
        (ServiceTimes(decode_base_s=1.0), "1 request: too few rounds (1)", 120),
    ],
)
def test_an_engine_that_is_too_slow_for_a_trial_begins_without_drafts(
    times: ServiceTimes, reason: str, within_s: float
) -> None:
    @in_virtual_time
    async def start() -> None:
        choice = await run_on(ScriptedEngine(times=times, num_speculative_tokens=4))
        assert choice.is_off
        assert reason in choice.reason
        assert LoopClock().now() < within_s, "it ends when that is known"

    start()


@in_virtual_time
async def test_an_engine_that_dies_ends_the_trial() -> None:
    engine = KNOWN[GAINS_8].make()
    trial = asyncio.create_task(run_on(engine))
    await asyncio.sleep(3)
    engine.crash()
    with pytest.raises(EngineDeadError, match="crashed"):
        await trial
