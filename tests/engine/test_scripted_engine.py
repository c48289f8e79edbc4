"""The scripted engine: the contract, and its times, queue, cache, text, faults and refusals in virtual time."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from completion_server.engine.interface import EngineDeadError, EngineStats
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.engine.contract import EngineContract
from tests.engine.speculation_contract import SpeculationContract
from tests.support.scripted import collect, in_virtual_time, now, request, started, times_of

QUICK = ServiceTimes(prefill_base_s=1e-3, prefill_per_token_s=1e-6, decode_base_s=1e-3)


@pytest.fixture(params=[0, 3], ids=["plain", "speculative"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine(times=QUICK, num_speculative_tokens=request.param)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def doomed_engine(engine: ScriptedEngine) -> ScriptedEngine:
    return engine


class TestScriptedEngine(EngineContract, SpeculationContract):
    quiet_s = 0.05
    num_steps_to_stop = 1


@in_virtual_time
async def test_a_single_generation_takes_its_prefill_and_a_step_for_each_further_token() -> None:
    engine = await started()
    outputs = await collect(engine, request("a", num_prompt=10, max_tokens=3))
    assert times_of(outputs) == [0.020, 0.026, 0.032]
    assert [output.text for _, output in outputs] == ["a", "b", "c"]
    assert [output.finish for _, output in outputs] == [None, None, "length"]


@in_virtual_time
async def test_a_long_prompt_takes_several_steps_and_others_decode_meanwhile() -> None:
    engine = await started(max_num_batched_tokens=32)
    long = asyncio.create_task(collect(engine, request("long", num_prompt=60, max_tokens=1)))
    await asyncio.sleep(0.001)
    short = await collect(engine, request("short", num_prompt=2, max_tokens=3))
    assert times_of(await long) == [0.042 + 0.040]
    assert times_of(short) == [0.082, 0.088, 0.094]


@in_virtual_time
async def test_prompts_that_are_computed_apart_delay_no_other_generation() -> None:
    engine = await started(times=ServiceTimes(prefill_apart_s=0.045, decode_base_s=0.010), max_num_seqs=2)
    first = asyncio.create_task(collect(engine, request("a", max_tokens=8)))
    await asyncio.sleep(0.030)
    late = asyncio.create_task(collect(engine, request("b", max_tokens=2)))
    gone = asyncio.create_task(collect(engine, request("c", max_tokens=2)))
    await asyncio.sleep(0.005)
    gone.cancel()  # while it waits for a place
    # The first token comes with the step after the prompt is ready, which is checked every 10 ms.
    assert times_of(await first) == [0.055, 0.065, 0.075, 0.085, 0.095, 0.105, 0.115, 0.125]
    assert times_of(await late) == [0.095, 0.105]
    assert engine.stats() == EngineStats(num_generated_tokens=10)


@in_virtual_time
async def test_the_cache_shortens_prefill() -> None:
    engine = await started()
    first = await collect(engine, request("a", num_prompt=48, max_tokens=1))
    again = await collect(engine, request("b", num_prompt=50, max_tokens=1))
    salted = await collect(engine, request("c", num_prompt=50, max_tokens=1, cache_salt="s"))
    assert [outputs[0][1].cached_prompt_tokens for outputs in (first, again, salted)] == [0, 48, 0]
    assert times_of(first + again + salted) == [0.058, 0.070, 0.130]
    whole = await collect(engine, request("d", num_prompt=48, max_tokens=1))
    assert whole[0][1].cached_prompt_tokens == 32


@pytest.mark.parametrize(
    ("rate", "times", "accepted"),
    [(1.0, [0.020, 0.0335, 0.047], 6), (0.0, [0.020, *(0.020 + 0.0135 * step for step in range(1, 9))], 0)],
)
@in_virtual_time
async def test_speculation_writes_the_accepted_tokens_in_one_step(
    rate: float, times: list[float], accepted: int
) -> None:
    engine = await started(num_speculative_tokens=3, acceptance_rate=rate)
    outputs = await collect(engine, request("a", max_tokens=9))
    assert times_of(outputs) == pytest.approx(times)
    assert "".join(output.text for _, output in outputs) == "abcdefghi"
    assert outputs[-1][1].accepted_draft_tokens == accepted
    assert outputs[-1][1].drafted_tokens == 3 * (len(times) - 1)


@in_virtual_time
async def test_requests_that_can_never_run_are_refused() -> None:
    engine = await started(max_model_len=100, num_kv_blocks=4)
    with pytest.raises(ValueError, match="leaves no room in 100"):
        await collect(engine, request("a", num_prompt=100))
    with pytest.raises(ValueError, match="do not fit into 4"):
        await collect(engine, request("b", num_prompt=90))
    first = engine.generate(request("same"))
    await anext(first)
    with pytest.raises(ValueError, match="open already"):
        await collect(engine, request("same"))
    await first.aclose()


@in_virtual_time
async def test_an_engine_serves_after_its_start_and_starts_once() -> None:
    engine = ScriptedEngine(times=ServiceTimes(start_s=20.0))
    with pytest.raises(EngineDeadError, match="not started"):
        _ = engine.info
    with pytest.raises(EngineDeadError, match="not started"):
        await collect(engine, request("a"))
    await engine.start()
    assert now() == 20.0
    with pytest.raises(RuntimeError, match="starts once"):
        await engine.start()
    broken = ScriptedEngine()
    broken.crash("no such device")
    with pytest.raises(EngineDeadError, match="no such device"):
        await broken.start()
