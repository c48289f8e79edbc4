"""What a server measures at start, and the schedule that it begins with."""

import pytest

from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from completion_server.speculation.trial import StartChoice, choose, run_trial
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock

MAX_K, SEQS = 4, 32


def make_request(document: int, num_keys: int, num_tokens: int) -> GenerationRequest:
    return GenerationRequest(f"{document}-{num_keys}", [1 + document] * (64 + num_keys), num_tokens)


async def run_on(engine: ScriptedEngine) -> StartChoice:
    assert engine.speculation is not None
    return await run_trial(engine, engine.speculation, make_request, LoopClock(), step_timeout_s=10.0)


def on_scripted_engine(draft_s: float, acceptance_rate: float) -> tuple[StartChoice, float]:
    """Return the choice and the seconds that the trial took."""

    async def main() -> tuple[StartChoice, float]:
        times = ServiceTimes(prefill_base_s=0.005, decode_base_s=0.005, draft_s=draft_s)
        engine = ScriptedEngine(
            times=times, max_num_seqs=SEQS, num_speculative_tokens=MAX_K, acceptance_rate=acceptance_rate
        )
        await engine.start()
        begun = LoopClock().now()
        choice = await run_on(engine)
        took_s = LoopClock().now() - begun
        await engine.stop()
        return choice, took_s

    return virtual_time.run(main())


def test_drafts_that_pay_are_on() -> None:
    choice, took_s = on_scripted_engine(draft_s=0.0001, acceptance_rate=0.8)
    assert not choice.is_off
    assert choice.rows[-1][1] == SEQS
    assert "times the tokens/s without drafts (K = 4" in choice.reason
    assert took_s < 10


def test_drafts_that_do_not_pay_are_off() -> None:
    choice, _ = on_scripted_engine(draft_s=0.004, acceptance_rate=0.3)
    assert choice.is_off
    assert choice.rows == ((1, SEQS, 0),)


def test_each_batch_size_gets_its_best_k() -> None:
    rates = {(1, 0): 100.0, (1, 2): 130.0, (1, 4): 150.0, (4, 0): 300.0, (4, 2): 330.0, (4, 4): 310.0}
    rates |= {(16, 0): 900.0, (16, 2): 940.0, (16, 4): 700.0}
    choice = choose(rates, 64)
    assert choice.rows == ((1, 2, 4), (3, 8, 2), (9, 64, 0))
    assert choice.reason == "at best 1.50 times the tokens/s without drafts (K = 4, 1 request)"


def test_a_gain_within_the_noise_is_none() -> None:
    assert choose({(1, 0): 100.0, (1, 4): 104.0}, 1) == StartChoice(
        ((1, 1, 0),), "at best 1.04 times the tokens/s without drafts (K = 4, 1 request)"
    )


@pytest.mark.parametrize("size", [1, 3])
def test_a_small_engine_is_measured_at_the_sizes_that_it_has(size: int) -> None:
    async def main() -> StartChoice:
        engine = ScriptedEngine(max_num_seqs=size, num_speculative_tokens=1)
        await engine.start()
        choice = await run_on(engine)
        await engine.stop()
        return choice

    assert virtual_time.run(main()).rows[-1][1] == size
