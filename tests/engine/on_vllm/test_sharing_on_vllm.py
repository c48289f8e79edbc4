"""One vLLM engine that several processes share: the contract, K, and the deaths of front ends and of the core."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from completion_server.composition.engine_factory import make_attached_engine
from completion_server.engine.interface import (
    AttachedEngine,
    EngineDeadError,
    EngineStep,
    GenerationRequest,
    constant_lookup,
)
from completion_server.engine.vllm.sharing.share import VllmShare
from tests.engine.contract import EngineContract, Result, prompt, run_request
from tests.support.front_ends import FrontEnd
from tests.support.server import eventually
from tests.support.vllm import asynchronous_scheduling, make_vllm_engine, vllm_config

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = pytest.mark.serial

NUM_SEQS = 16
START_S = 240.0
HERE, FIRST, SECOND, DOOMED = range(4)
"""Places: those in the test's own process, and those of other processes."""


@pytest_asyncio.fixture(scope="module")
async def parent() -> "AsyncIterator[VllmEngine]":
    engine = make_vllm_engine(num_places=4)
    with asynchronous_scheduling():
        async with asyncio.timeout(START_S):
            await engine.start()
    yield engine
    await engine.stop()


def attached_at(parent: "VllmEngine", place: int) -> AttachedEngine:
    share = parent.share()
    assert share is not None
    return make_attached_engine(vllm_config(), share, place)


@pytest_asyncio.fixture(scope="module")
async def engine(parent: "VllmEngine") -> AsyncIterator[AttachedEngine]:
    engine = attached_at(parent, HERE)
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture
async def doomed_engine(parent: "VllmEngine") -> AsyncIterator[AttachedEngine]:
    engine = attached_at(parent, DOOMED)
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="module")
async def front_ends(parent: "VllmEngine") -> AsyncIterator[list[FrontEnd]]:
    """Yield two processes. A test that ends one of them puts another into the list."""
    share = parent.share()
    assert share is not None
    front_ends = [FrontEnd(vllm_config(), share, place) for place in (FIRST, SECOND)]
    await asyncio.gather(*(each.start() for each in front_ends))
    yield front_ends
    for each in front_ends:
        each.kill()


class TestAttachedEngine(EngineContract):
    vocab_size = 4096

    async def test_a_place_can_be_used_again(self, parent: "VllmEngine", doomed_engine: AttachedEngine) -> None:
        """What the core still sends for the earlier one does no harm."""
        for number in range(3):
            outputs = doomed_engine.generate(GenerationRequest(f"left-{number}", prompt(64, number), 200))
            await anext(outputs)
            await doomed_engine.stop()
            with pytest.raises(EngineDeadError):
                await anext(outputs)
            doomed_engine = attached_at(parent, DOOMED)
            await doomed_engine.start()
            await run_request(doomed_engine, GenerationRequest(f"next-{number}", prompt(64, number), 8))
        await doomed_engine.stop()
        await self.idle(parent)


async def side_by_side(front_ends: list[FrontEnd], name: str, num_tokens: int = 64) -> list[Result]:
    """Return a generation of each process; they run at the same time, with the same id and the same prompt."""
    request = GenerationRequest(name, prompt(96, 1), num_tokens)
    return list(await asyncio.gather(*(run_request(each, request) for each in front_ends)))


async def test_greedy_texts_are_those_of_one_client(parent: "VllmEngine", front_ends: list[FrontEnd]) -> None:
    """Alone, because generations that share a step may round differently."""
    for variant in range(4):
        request = GenerationRequest(f"greedy-{variant}", prompt(96, variant), 48)
        expected = await run_request(parent, request)
        for each in front_ends:
            assert (await run_request(each, request)).text == expected.text


async def test_k_is_the_parents_and_it_sees_every_step(parent: "VllmEngine", front_ends: list[FrontEnd]) -> None:
    control = parent.speculation
    assert control is not None
    # It has heard of the steps of earlier tests once it has output of its own: all come through one socket.
    await run_request(parent, GenerationRequest("after-others", prompt(16, 5), 1))
    steps: list[EngineStep] = []
    ks = (3, 1, 0, 2)

    def observe(step: EngineStep) -> None:
        steps.append(step)
        control.set_lookup(constant_lookup(ks[len(steps) // 5 % len(ks)], NUM_SEQS))

    parent.watch_steps(observe)
    results = await side_by_side(front_ends, "changes", 160)
    await eventually(lambda: sum(step.num_tokens for step in steps) >= 320)
    parent.watch_steps(lambda _step: None)
    control.set_lookup(constant_lookup(3, NUM_SEQS))
    assert results[0].num_tokens == results[1].num_tokens == 160
    num_tokens = sum(step.num_tokens for step in steps)
    assert 320 <= num_tokens <= 320 + 2 * 4, "an asynchronous step may follow the last one"
    assert {step.num_speculative_tokens for step in steps} == set(ks)
    assert max(step.num_seqs for step in steps) == 2
    assert all(step.seconds is not None and 0 < step.seconds < 1 for step in steps[1:])
    for counts, at in (("drafted_tokens", "drafted"), ("accepted_draft_tokens", "accepted")):
        of_generations = sum(getattr(each.last, counts) for each in results)
        of_steps = sum(sum(getattr(step, at)) for step in steps)
        assert abs(of_generations - of_steps) <= 2 * 3, "drafts of a step that is planned while a generation ends"


async def test_prompts_without_draft_kv_are_not_reused_in_any_process(
    parent: "VllmEngine", front_ends: list[FrontEnd]
) -> None:
    control = parent.speculation
    assert control is not None
    token_ids = prompt(300, 77)

    async def cached(front_end: FrontEnd, name: str) -> int:
        result = await run_request(front_end, GenerationRequest(name, token_ids, 4))
        return result.last.cached_prompt_tokens

    first, second = front_ends
    await cached(first, "drafted")
    control.switch_off()
    assert await cached(second, "off") > 0
    control.set_lookup(constant_lookup(3, NUM_SEQS))
    assert await cached(second, "on") == 0
    assert await cached(first, "again") > 0


async def test_requests_that_refuse_drafts_show_in_the_parents_steps(
    parent: "VllmEngine", front_ends: list[FrontEnd]
) -> None:
    from completion_server.core.request import Sampling

    steps: list[EngineStep] = []
    parent.watch_steps(steps.append)
    request = GenerationRequest("refusing", prompt(64, 12), 16, Sampling(speculate=False))
    await run_request(front_ends[0], request)
    await run_request(front_ends[1], GenerationRequest("drafted", prompt(64, 12), 16))
    # The parent hears of a step when it reads its own socket: also of those of an earlier test.
    await eventually(lambda: any(step.has_undrafted for step in steps) and not steps[-1].has_undrafted)
    parent.watch_steps(lambda _step: None)
    assert not any(step.drafted for step in steps if step.has_undrafted)


async def test_a_killed_front_end_leaves_nothing_and_another_takes_its_place(
    parent: "VllmEngine", engine: AttachedEngine, front_ends: list[FrontEnd]
) -> None:
    first, second = front_ends
    await eventually(lambda: engine.stats().num_running == 0)
    kept = asyncio.create_task(run_request(second, GenerationRequest("kept", prompt(64, 3), 400)))
    lost = [first.generate(GenerationRequest(f"lost-{i}", prompt(64, 10 + i), 900)) for i in range(6)]
    for each in lost:
        await anext(each)
    assert engine.stats().num_running == 7
    first.kill()
    aborting = asyncio.create_task(parent.abort_place(first.place))
    await eventually(lambda: engine.stats().num_running <= 1, 1.0)
    await aborting
    share = parent.share()
    assert share is not None
    front_ends[0] = FrontEnd(vllm_config(), share, first.place)
    await front_ends[0].start()
    texts = await side_by_side(front_ends, "after")
    assert texts[0].text == texts[1].text
    assert (await kept).num_tokens == 400
    await eventually(lambda: engine.stats().num_running == 0)
    assert engine.stats().kv_usage == 0.0


async def test_the_cores_death_ends_the_generations_of_all(
    parent: "VllmEngine", engine: AttachedEngine, front_ends: list[FrontEnd]
) -> None:
    async def consume(name: str, generating: FrontEnd | AttachedEngine) -> float:
        outputs = generating.generate(GenerationRequest(name, prompt(64, 5), 900))
        with pytest.raises(EngineDeadError):
            _ = [output async for output in outputs]
        return time.monotonic()

    share = parent.share()
    clients = (*front_ends, engine)
    tasks = [asyncio.create_task(consume(f"doomed-{at}", each)) for at, each in enumerate(clients)]
    await eventually(lambda: engine.stats().num_running == 3)
    os.kill(parent.process_ids[0], signal.SIGKILL)
    await eventually(lambda: not parent.is_alive)
    assert parent.share() is None
    assert not any(task.done() for task in tasks), "only the parent sees that the core is dead"
    began = time.monotonic()
    for each in clients:
        each.fail("the engine died")
    ended = await asyncio.gather(*tasks)
    assert max(ended) - began < 1.0
    assert not engine.is_alive
    with pytest.raises(EngineDeadError):
        await run_request(engine, GenerationRequest("late", [1], 1))
    assert isinstance(share, VllmShare)
    late = make_attached_engine(vllm_config(), share, DOOMED)
    with pytest.raises(EngineDeadError, match="the engine did not connect"):
        await late.start()
    await parent.stop()
    assert not share.board.parent.exists()


@pytest.mark.full
async def test_an_engine_without_drafts_is_shared_too() -> None:
    """K is locked, and the scheduler plans a step after the one before it has ended."""
    parent = make_vllm_engine("engine.draft_model=", num_places=1)
    await parent.start()
    try:
        engine = attached_at(parent, HERE)
        await engine.start()
        request = GenerationRequest("plain", prompt(64, 1), 24)
        assert (await run_request(engine, request)).text == (await run_request(parent, request)).text
        outputs = engine.generate(GenerationRequest("open", prompt(64, 2), 400))
        await anext(outputs)
        await parent.abort_place(HERE)
        await eventually(lambda: engine.stats().num_running == 0)
        await outputs.aclose()
        await engine.stop()
    finally:
        await parent.stop()
