"""A scripted engine in several processes: the contract, and the capacity that they share, in virtual time."""

import asyncio
import multiprocessing
import pickle
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from completion_server.engine.interface import EngineDeadError, constant_lookup
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.engine.scripted.sharing import Load, ScriptedShare, SharedCapacity
from completion_server.engine.settings import EngineSettings
from tests.engine.contract import EngineContract
from tests.support.scripted import collect, in_virtual_time, request, times_of

SETTINGS = EngineSettings(
    kind="scripted", scripted_times="large_model_on_a_gpu", draft_model="d", num_speculative_tokens=3, max_num_seqs=4
)
QUICK = EngineSettings(kind="scripted", scripted_times="instant", max_num_seqs=16)
STEP_S, PROMPT_STEP_S = 0.008, 0.045


async def started(settings: EngineSettings = SETTINGS, num_attached: int = 2) -> list[ScriptedEngine]:
    """Return a parent and engines that are attached to it."""
    parent = ScriptedEngine.from_settings(settings, num_places=num_attached)
    await parent.start()
    share = pickle.loads(pickle.dumps(parent.share()))
    engines = [parent, *(ScriptedEngine.from_share(share, place, settings) for place in range(num_attached))]
    for engine in engines[1:]:
        engine.acceptance_rate = 0.0
        await engine.start()
    parent.acceptance_rate = 0.0
    return engines


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engines = await started(QUICK)
    yield engines[1]
    for engine in engines:
        await engine.stop()


@pytest.fixture
def doomed_engine(engine: ScriptedEngine) -> ScriptedEngine:
    return engine


class TestAttachedScriptedEngine(EngineContract):
    quiet_s = 0.05
    num_steps_to_stop = 1


@in_virtual_time
async def test_alone_an_attached_engine_is_as_fast_as_the_only_one() -> None:
    _parent, first, _second = await started()
    only = ScriptedEngine.from_settings(SETTINGS)
    only.acceptance_rate = 0.0
    await only.start()
    began = asyncio.get_running_loop().time()
    times = times_of(await collect(first, request("a")))
    after = asyncio.get_running_loop().time()
    assert [at - after for at in times_of(await collect(only, request("a")))] == pytest.approx(
        [at - began for at in times]
    )


@in_virtual_time
async def test_a_step_takes_as_long_as_one_with_the_prompts_of_all() -> None:
    """The decode step during which the other's prompt begins is over before it; the next one computes the prompt."""
    _parent, first, second = await started()
    decoding = asyncio.create_task(collect(first, request("a", max_tokens=6)))
    await asyncio.sleep(PROMPT_STEP_S + STEP_S / 2)
    await collect(second, request("b", max_tokens=1))
    gaps = [
        after - before for before, after in zip(times_of(await decoding), times_of(await decoding)[1:], strict=False)
    ]
    assert gaps == pytest.approx([STEP_S, STEP_S + PROMPT_STEP_S, STEP_S, STEP_S, STEP_S], abs=1e-6)


@in_virtual_time
async def test_all_generations_together_are_at_most_max_num_seqs() -> None:
    parent, first, second = await started()
    tasks = [asyncio.create_task(collect(first, request(f"a{i}", max_tokens=4))) for i in range(3)]
    await asyncio.sleep(0.001)
    tasks += [asyncio.create_task(collect(second, request(f"b{i}", max_tokens=4))) for i in range(3)]
    await asyncio.sleep(0.001)
    for engine in (parent, first, second):
        assert (engine.stats().num_running, engine.stats().num_waiting) == (4, 2)
    await asyncio.gather(*tasks)
    assert all(engine.stats().num_running == engine.stats().num_waiting == 0 for engine in (parent, first, second))
    assert sum(engine.stats().num_generated_tokens for engine in (first, second)) == 24


@in_virtual_time
async def test_k_and_salts_are_the_parents() -> None:
    parent, first, second = await started()
    assert first.speculation is None
    control = parent.speculation
    assert control is not None
    assert (await collect(first, request("a", max_tokens=4)))[-1][1].drafted_tokens == 9
    control.set_lookup(constant_lookup(1, 4))
    assert (await collect(first, request("b", max_tokens=4)))[-1][1].drafted_tokens == 3
    control.switch_off()
    off = await collect(second, request("c", num_prompt=64, max_tokens=4))
    assert off[-1][1].drafted_tokens == 0
    again = await collect(second, request("d", num_prompt=64, max_tokens=4))
    control.set_lookup(constant_lookup(3, 4))
    fresh = await collect(second, request("e", num_prompt=64, max_tokens=4))
    assert again[0][1].cached_prompt_tokens > 0 == fresh[0][1].cached_prompt_tokens


@in_virtual_time
async def test_the_load_of_a_process_that_has_ended_is_forgotten() -> None:
    parent, first, second = await started()
    lost = [first.generate(request(f"lost-{number}", max_tokens=100)) for number in range(4)]
    for each in lost:
        await anext(each)
    first.hang()  # as a killed process: it writes no more
    await asyncio.sleep(1.0)
    waiting = asyncio.create_task(collect(second, request("b", max_tokens=2)))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    await parent.abort_place(0)
    await asyncio.wait_for(waiting, 0.2)


@in_virtual_time
async def test_the_parents_death_is_told_to_those_attached() -> None:
    parent, first, _second = await started()
    outputs = first.generate(request("a", max_tokens=100))
    await anext(outputs)
    share = parent.share()
    assert isinstance(share, ScriptedShare)
    parent.crash("out of memory")
    assert parent.share() is None
    await anext(outputs)
    first.fail("out of memory")
    with pytest.raises(EngineDeadError, match="out of memory"):
        await anext(outputs)
    await parent.stop()
    assert not share.path.parent.exists()
    first.stats()
    with pytest.raises(EngineDeadError, match="was stopped"):
        ScriptedEngine.from_share(share, 1, SETTINGS)


def test_an_engine_that_is_not_made_for_it_is_not_shared() -> None:
    assert ScriptedEngine.from_settings(SETTINGS).share() is None


def write_load(path: Path) -> None:
    SharedCapacity(path, 1, 4, 0).write(Load(num_running=3, num_blocks=2**40))


def test_loads_are_seen_by_other_processes() -> None:
    capacity = SharedCapacity.create(1, 4)
    capacity.write(Load(num_running=1))
    process = multiprocessing.get_context("spawn").Process(target=write_load, args=(capacity.path,))
    process.start()
    process.join(60.0)
    assert capacity.others() == Load(num_running=3, num_blocks=2**40)
    capacity.clear(0)
    assert capacity.others() == Load()
    capacity.remove()
