"""Changes of K on the real engine, and their effect on text and drafts, with both schedulers and with n-gram drafts."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from completion_server.core.request import Sampling
from completion_server.engine.interface import NGRAM, EngineStep, GenerationRequest, constant_lookup
from tests.engine.contract import prompt, run_request
from tests.support.vllm import asynchronous_scheduling, make_vllm_engine

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = pytest.mark.serial

NUM_SEQS = 16
NUM_TEXTS = 3


@asynccontextmanager
async def started(*settings: str) -> "AsyncIterator[VllmEngine]":
    """Start an engine, with synchronous scheduling, as vLLM has it on a CPU."""
    engine = make_vllm_engine(*settings)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


def set_k(engine: "VllmEngine", k: int) -> None:
    assert engine.speculation is not None
    engine.speculation.set_lookup(constant_lookup(k, NUM_SEQS))


async def generate_text(engine: "VllmEngine", name: str, variant: int, *, changes: bool) -> str:
    """Return the text of a generation; `changes` sets another K every few outputs."""
    lengths = itertools.cycle((0, 2, 1, 3, 0, 3))
    text, num_outputs = "", 0
    async for output in engine.generate(GenerationRequest(f"{name}-{variant}", prompt(96, variant), 96)):
        text += output.text
        num_outputs += 1
        if changes and num_outputs % 3 == 0:
            set_k(engine, next(lengths))
    return text


async def check_changes(engine: "VllmEngine") -> None:
    """Check that K changes while a generation runs, and that the text stays the same.

    Generations run one at a time: those that share a step may round differently, with or without drafts.
    """
    assert engine.info.speculation_locked_reason == ""
    set_k(engine, 3)
    still = [await generate_text(engine, "still", variant, changes=False) for variant in range(NUM_TEXTS)]
    steps: list[EngineStep] = []
    engine.watch_steps(steps.append)
    moved = [await generate_text(engine, "moved", variant, changes=True) for variant in range(NUM_TEXTS)]
    engine.watch_steps(lambda _step: None)
    set_k(engine, 3)
    assert moved == still
    assert {step.num_speculative_tokens for step in steps} == {0, 1, 2, 3}


@pytest.mark.full
@pytest.mark.parametrize("setting", ["engine.full_cuda_graphs=false", "engine.tensor_parallel_size=2"])
async def test_greedy_text_is_the_same_over_changes_with_synchronous_scheduling(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under tensor parallelism the models are split over two processes; the scheduler is in neither."""
    cpus = sorted(os.sched_getaffinity(0))
    if "parallel" in setting:
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cpus[0]}|{cpus[-1]}")
    async with started(setting) as engine:
        await check_changes(engine)


@pytest.mark.full
async def test_greedy_text_is_the_same_over_changes_without_a_schedule() -> None:
    """As full CUDA graphs need it: vLLM is started with a constant K, and its scheduler has no lookup of its own."""
    with asynchronous_scheduling():
        async with started("engine.full_cuda_graphs=true") as engine:
            await check_changes(engine)


async def test_drafted_text_is_drawn_at_the_temperature_asked_for(vllm_engine: "VllmEngine") -> None:
    """A temperature near 0 gives the greedy text; a high one changes nearly every text. The requests share steps.

    The texts are short because a tie of two tokens in bfloat16 is drawn by lot at any temperature.
    """

    async def draw(degree: float, variant: int, *, speculate: bool = True) -> str:
        sampling = Sampling(degree, seed=variant + 1, speculate=speculate)
        request = GenerationRequest(f"at-{degree}-{variant}-{speculate}", prompt(96, variant), 12, sampling)
        return (await run_request(vllm_engine, request)).text

    set_k(vllm_engine, 3)
    variants = range(NUM_SEQS // 2)
    greedy = [await draw(0, variant, speculate=False) for variant in variants]
    mixed = await asyncio.gather(*(draw(degree, variant) for variant in variants for degree in (0, 0.001, 2.0)))
    drafted, cold, hot = mixed[::3], mixed[1::3], mixed[2::3]
    assert sum(map(str.__eq__, drafted, greedy)) >= len(variants) - 1, "steps of another size round otherwise"
    assert sum(map(str.__eq__, cold, greedy)) >= len(variants) - 1, "logits in bfloat16 may tie"
    assert sum(map(str.__eq__, hot, greedy)) <= 1


async def test_a_seed_holds_for_a_prompt_that_is_computed_in_pieces(vllm_engine: "VllmEngine") -> None:
    """Together the prompts are much longer than a step may be, so that many are begun in one and ended in another."""

    async def draw(variant: int, salt: str) -> str:
        sampling, salt = Sampling(0.8, seed=variant, speculate=False), f"{salt}-{variant}"
        request = GenerationRequest(salt, prompt(900, variant), 16, sampling, cache_salt=salt)
        return (await run_request(vllm_engine, request)).text

    variants = range(NUM_SEQS // 2)
    alone = [await draw(variant, "seeded-alone") for variant in variants]
    together = await asyncio.gather(*(draw(variant, "seeded-together") for variant in variants))
    assert sum(map(str.__eq__, together, alone)) >= 0.75 * len(variants), "steps of another size round otherwise"


@pytest.mark.full
async def test_a_vllm_without_the_attribute_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler reports that it can't read the lookup; the engine runs with its K and has a locked reason."""
    engine = make_vllm_engine()  # imports the module
    monkeypatch.setattr("completion_server.engine.vllm.engine.SCHEDULERS_MODULE", "tests.support.schedulers")
    try:
        await engine.start()
        assert "no longer reads a lookup" in engine.info.speculation_locked_reason
        result = await run_request(engine, GenerationRequest("fixed", prompt(64, 1), 16))
        assert result.last.drafted_tokens > 0
    finally:
        await engine.stop()


async def test_a_change_takes_effect_within_two_steps(vllm_engine: "VllmEngine") -> None:
    """The running step and, if it is planned already, the next one have the old K; drafts are verified a step later."""
    set_k(vllm_engine, 3)
    steps: list[EngineStep] = []
    at_change = 10

    def observe(step: EngineStep) -> None:
        steps.append(step)
        if len(steps) == at_change:
            set_k(vllm_engine, 0)

    vllm_engine.watch_steps(observe)
    await run_request(vllm_engine, GenerationRequest("effect", prompt(64, 70), 64))
    vllm_engine.watch_steps(lambda _step: None)
    set_k(vllm_engine, 3)
    assert {step.num_speculative_tokens for step in steps[1:at_change]} == {3}
    assert {step.num_speculative_tokens for step in steps[at_change + 3 :]} == {0}


@pytest.mark.full
async def test_a_prompt_that_repeats_itself_gives_n_gram_drafts_and_the_same_text() -> None:
    async with started(f"engine.draft_model={NGRAM}") as engine:
        info, control = engine.info, engine.speculation
        assert (info.draft_model, info.num_speculative_tokens) == (NGRAM, 3)
        assert control is not None
        token_ids = prompt(24, 7) * 4
        drafted = await run_request(engine, GenerationRequest("drafted", token_ids, 48))
        control.switch_off()
        without = await run_request(engine, GenerationRequest("off", token_ids, 48))
        control.set_lookup(constant_lookup(2, info.max_num_seqs))
        fewer = await run_request(engine, GenerationRequest("fewer", token_ids, 48))
        control.set_lookup(constant_lookup(3, info.max_num_seqs))
        asked = [
            await run_request(engine, GenerationRequest(f"recalled-{number}", prompt(48, 9), 32, author=author))
            for number, author in enumerate(("ann", "ann", "bob", ""))
        ]
    accepted = [each.last.accepted_draft_tokens for each in asked]
    assert accepted[0] == accepted[2] == accepted[3] < 16 < accepted[1], "drafts from the author's last answers alone"
    assert len({each.text for each in asked}) == 1
    assert drafted.text == without.text == fewer.text
    assert drafted.last.accepted_draft_tokens > 0
    assert drafted.last.drafted_tokens > fewer.last.drafted_tokens > without.last.drafted_tokens == 0
    # Such drafts have no KV, so a prompt computed while they were off is as good as any other.
    assert fewer.last.cached_prompt_tokens > 0
