"""The step benchmark, on a scripted engine of known times."""

import pytest

from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.scripted.model import ServiceTimes
from loadtest.bench.steps.fit import fit
from loadtest.bench.steps.measure import Samples, Shape, measure
from loadtest.simulation import virtual_time

TIMES = ServiceTimes(
    step_base_s=6e-3, prefill_base_s=1e-3, prefill_per_seq_s=2e-3, prefill_per_token_s=1e-4, decode_per_seq_s=2e-3
)


async def _measured(num_rounds: int) -> Samples:
    engine = ScriptedEngine(times=TIMES, max_num_seqs=16)
    await engine.start()
    try:
        return await measure(engine, (1, 4, 8), ((1, 32), (4, 32), (1, 256)), num_rounds, seed=1)
    finally:
        await engine.stop()


def test_the_steps_of_an_engine_are_found_again() -> None:
    samples = virtual_time.run(_measured(3))
    found = fit(samples.typical())
    assert found.base_s == pytest.approx(6e-3, rel=0.02)
    assert found.per_seq_s == pytest.approx(2e-3, rel=0.02)
    assert found.per_prompt_token_s == pytest.approx(1e-4, rel=0.02)
    assert found.prompts_s == pytest.approx(1e-3, rel=0.1)
    assert found.error < 0.01
    assert found.seconds(Shape(4, 1, 32)) == pytest.approx(TIMES.step_s(32, 4, 0, 1))


def test_a_first_token_comes_with_its_own_step_after_that_in_progress() -> None:
    counts = virtual_time.run(_measured(2)).first_token_steps
    assert set(counts) <= {1, 2}


def test_disturbed_steps_do_not_count() -> None:
    samples = Samples()
    for seconds in (0.01, 0.01, 0.01, 0.02, 0.5):
        samples.add(Shape(2), seconds)
    assert samples.typical() == {Shape(2): pytest.approx(0.01)}


def test_no_term_is_negative() -> None:
    found = fit({Shape(1): 0.010, Shape(8): 0.009, Shape(4, 1, 32): 0.012})
    assert min(found.base_s, found.per_seq_s, found.per_prompt_token_s, found.prompts_s) >= 0
