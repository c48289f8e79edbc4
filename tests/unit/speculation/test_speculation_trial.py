"""What a server measures at start, and the schedule that it begins with, on engines whose best schedule is known."""

import asyncio
import logging
import math
import random
from functools import cache

import pytest

from completion_server.engine.interface import EngineDeadError, trial_ks
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.speculation.comparison import GAIN
from completion_server.speculation.trial import LIMIT_S, StartChoice, run_trial, trial_sizes
from loadtest.bench.trial import MAX_LOSS, Start, Truth, measure_truth, start_once
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock
from tests.support.known_engines import KNOWN, SEQS, make_request
from tests.support.scripted import in_virtual_time

NUM_STARTS = 20
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


@pytest.mark.parametrize(("name", "gain"), [(LOSES, 0.9), (GAINS_4, 1.04), (GAINS_8, 1.08)])
def test_the_truths_are_what_their_names_say(name: str, gain: float) -> None:
    for gains in truth_of(name).log_gains.values():
        assert math.exp(max(each for k, each in gains.items() if k)) == pytest.approx(gain, abs=0.015)


def test_one_truth_changes_with_the_batch_size() -> None:
    gains = truth_of(SMALL_BATCHES).log_gains
    assert max(gains[1], key=lambda k: gains[1][k]) == 2
    assert math.exp(gains[1][2]) == pytest.approx(1.4, abs=0.05)
    assert max(gains[16], key=lambda k: gains[16][k]) == 0


@pytest.mark.parametrize(
    "name", [LOSES, *(pytest.param(each, marks=pytest.mark.full) for each in (GAINS_4, GAINS_8)), SMALL_BATCHES]
)
def test_of_20_starts_19_choose_a_schedule_within_3_percent_of_the_best(name: str) -> None:
    starts = [start(name, seed) for seed in range(NUM_STARTS)]
    over = [truth_of(name).over_best(each.choice.rows, is_adjusted=True) for each in starts]
    assert sum(each >= 1 - MAX_LOSS for each in over) >= 19, sorted(over)
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
    assert "measuring drafts for 4 s: 1 request: too few rounds (" in caplog.text


def test_where_no_drafts_are_chosen_the_controller_expects_no_gain() -> None:
    choice = start(LOSES, 1).choice
    assert choice.is_off
    assert max(max(gains.values()) for gains in choice.log_gains.values()) <= 0
    paying = start(GAINS_8, 1).choice
    assert paying.log_gains[16][1] == pytest.approx(math.log1p(0.08), abs=GAIN)


@pytest.mark.parametrize(("max_k", "ks"), [(1, (1,)), (2, (1, 2)), (3, (1, 3)), (4, (1, 2, 4)), (8, (1, 4, 8))])
def test_few_ks_are_measured(max_k: int, ks: tuple[int, ...]) -> None:
    assert trial_ks(max_k) == ks


@pytest.mark.parametrize(("most", "sizes"), [(1, (1,)), (3, (1,)), (4, (1, 4)), (SEQS, (1, 4, 16))])
@in_virtual_time
async def test_a_small_engine_is_measured_at_the_sizes_that_it_has(most: int, sizes: tuple[int, ...]) -> None:
    assert trial_sizes(most) == sizes
    choice = await run_on(ScriptedEngine(max_num_seqs=most, num_speculative_tokens=1, times=STEPS))
    assert choice.rows[-1][1] == most


@in_virtual_time
async def test_an_engine_that_is_too_slow_for_a_trial_begins_without_drafts() -> None:
    choice = await run_on(ScriptedEngine(times=ServiceTimes(decode_base_s=1.0), num_speculative_tokens=4))
    assert choice.is_off
    assert "1 request: too few rounds (" in choice.reason
    assert LoopClock().now() < 150


@pytest.mark.parametrize(("num_blocks", "warns"), [(8192, False), (100, True)])
@in_virtual_time
async def test_a_prefix_cache_that_is_too_small_for_the_trial_is_told(
    num_blocks: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await run_on(ScriptedEngine(times=STEPS, num_speculative_tokens=4, num_kv_blocks=num_blocks))
    assert ("the prefix cache held only" in caplog.text) == warns


@in_virtual_time
async def test_an_engine_that_dies_ends_the_trial() -> None:
    engine = KNOWN[GAINS_8].make()
    trial = asyncio.create_task(run_on(engine))
    await asyncio.sleep(3)
    engine.crash()
    with pytest.raises(EngineDeadError, match="crashed"):
        await trial
