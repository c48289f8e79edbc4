"""Changes of K on the real engine, and their effect on text and drafts, with both schedulers."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from dataclasses import make_dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from completion_server.core.request import Sampling
from completion_server.engine.interface import EngineStep, GenerationRequest, constant_lookup
from completion_server.engine.settings import EngineSettings
from tests.engine.contract_checks import prompt, run_request
from tests.support.vllm import asynchronous_scheduling, make_vllm_engine

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = pytest.mark.serial

NUM_SEQS = 16


@pytest_asyncio.fixture
async def synchronous_engine() -> "AsyncIterator[VllmEngine]":
    """Yield an engine with synchronous scheduling, as vLLM has it on a CPU."""
    engine = make_vllm_engine()
    await engine.start()
    yield engine
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
    still = [await generate_text(engine, "still", variant, changes=False) for variant in range(6)]
    steps: list[EngineStep] = []
    engine.watch_steps(steps.append)
    moved = [await generate_text(engine, "moved", variant, changes=True) for variant in range(6)]
    engine.watch_steps(lambda _step: None)
    set_k(engine, 3)
    assert moved == still
    assert {step.num_speculative_tokens for step in steps} == {0, 1, 2, 3}


async def test_greedy_text_is_the_same_over_changes(vllm_engine: "VllmEngine") -> None:
    await check_changes(vllm_engine)


@pytest.mark.full
async def test_greedy_text_is_the_same_over_changes_with_synchronous_scheduling(
    synchronous_engine: "VllmEngine",
) -> None:
    await check_changes(synchronous_engine)


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
        sampling = Sampling(0.8, seed=variant, speculate=False)
        request = GenerationRequest(
            f"{salt}-{variant}", prompt(900, variant), 16, sampling, cache_salt=f"{salt}-{variant}"
        )
        return (await run_request(vllm_engine, request)).text

    variants = range(NUM_SEQS)
    alone = [await draw(variant, "seeded-alone") for variant in variants]
    together = await asyncio.gather(*(draw(variant, "seeded-together") for variant in variants))
    assert sum(map(str.__eq__, together, alone)) >= 0.75 * NUM_SEQS, "steps of another size round otherwise"


@pytest.mark.full
async def test_a_vllm_without_the_attribute_runs_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler reports that it can't read the lookup; the engine runs with its K and has a locked reason."""
    engine = make_vllm_engine()
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
    at_change = 0

    def observe(step: EngineStep) -> None:
        nonlocal at_change
        steps.append(step)
        if len(steps) == 10:
            at_change = len(steps)
            set_k(vllm_engine, 0)

    vllm_engine.watch_steps(observe)
    await run_request(vllm_engine, GenerationRequest("effect", prompt(64, 70), 64))
    vllm_engine.watch_steps(lambda _step: None)
    set_k(vllm_engine, 3)
    assert {step.num_speculative_tokens for step in steps[1:at_change]} == {3}
    assert {step.num_speculative_tokens for step in steps[at_change + 3 :]} == {0}


async def test_generations_side_by_side_go_on_over_changes(vllm_engine: "VllmEngine") -> None:
    """Which of them share a step may move the last bits, and with them a close choice of a token in a few."""
    alone = [await generate_text(vllm_engine, "alone", variant, changes=False) for variant in range(8)]
    texts = await asyncio.gather(*(generate_text(vllm_engine, "side", variant, changes=True) for variant in range(8)))
    set_k(vllm_engine, 3)
    assert sum(text == undisturbed for text, undisturbed in zip(texts, alone, strict=True)) >= 4


async def test_a_request_may_refuse_drafts_beside_others(vllm_engine: "VllmEngine") -> None:
    drafted = [
        await run_request(vllm_engine, GenerationRequest(f"drafted-{i}", prompt(64, 60 + i), 48)) for i in range(3)
    ]
    plain = Sampling(speculate=False)
    without = [
        await run_request(vllm_engine, GenerationRequest(f"without-{i}", prompt(64, 60 + i), 48, plain))
        for i in range(3)
    ]
    assert [result.text for result in without] == [result.text for result in drafted]
    assert [result.last.drafted_tokens for result in without] == [0, 0, 0]
    assert all(result.last.drafted_tokens for result in drafted)
    mixed = [
        GenerationRequest(f"mixed-{i}", prompt(64, 60 + i % 3), 48, Sampling(speculate=i % 2 == 0)) for i in range(6)
    ]
    results = await asyncio.gather(*(run_request(vllm_engine, request) for request in mixed))
    assert [result.last.drafted_tokens > 0 for result in results] == [True, False] * 3
    assert sum(result.text == drafted[i % 3].text for i, result in enumerate(results)) >= 3


@pytest.mark.full
async def test_greedy_text_is_the_same_over_changes_without_a_schedule() -> None:
    """As full CUDA graphs need it: vLLM is started with a constant K, and its scheduler has no lookup of its own."""
    engine = make_vllm_engine("engine.full_cuda_graphs=true")
    with asynchronous_scheduling():
        await engine.start()
    try:
        await check_changes(engine)
    finally:
        await engine.stop()


@pytest.mark.full
async def test_k_changes_under_tensor_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models are split over two processes; the scheduler that follows the table is in neither."""
    cpus = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{cpus[0]}|{cpus[-1]}")
    engine = make_vllm_engine("engine.tensor_parallel_size=2")
    try:
        await engine.start()
        await check_changes(engine)
    finally:
        await engine.stop()


@pytest.mark.parametrize(
    ("vllm", "message"),
    [
        ({"data_parallel_size": 2}, "under data parallelism"),
        ({"scheduler_cls": "some.other.Scheduler"}, "names another scheduler"),
    ],
)
def test_vllm_is_started_without_a_schedule_if_k_is_locked(
    vllm_engine: "VllmEngine", vllm: dict[str, object], message: str
) -> None:
    from completion_server.engine.vllm import arguments as module

    plain, kept = EngineSettings(model="m", draft_model="d"), EngineSettings(model="m", draft_model="d", vllm=vllm)
    rows = module.engine_args(plain)["speculative_config"]["num_speculative_tokens_per_batch_size"]
    assert rows == [[1, plain.max_num_seqs, plain.num_speculative_tokens]]
    assert "num_speculative_tokens_per_batch_size" not in module.engine_args(kept)["speculative_config"]
    assert message in module.settings_locked_reason(kept)
    assert module.settings_locked_reason(plain) == ""


def test_a_vllm_whose_schedulers_are_elsewhere_keeps_its_k(vllm_engine: "VllmEngine") -> None:
    from completion_server.engine.vllm import arguments as module

    assert module.schedulers_locked_reason("completion_server.engine.vllm.drafts.schedulers") == ""
    assert "other schedulers: No module named" in module.schedulers_locked_reason("tests.support.no_such_schedulers")


@pytest.mark.parametrize(
    ("settings", "runner"),
    [
        (EngineSettings(model="m", draft_model="d"), "0"),
        (EngineSettings(model="m", draft_model="d", vllm={"data_parallel_size": 2}), "0"),
        (EngineSettings(model="m", vllm={"speculative_config": {"model": "d", "num_speculative_tokens": 2}}), "0"),
        (EngineSettings(model="m", draft_model="d", num_speculative_tokens=0), None),
        (EngineSettings(model="m"), None),
        (EngineSettings(model="m", draft_model="ngram"), None),
    ],
    ids=["draft model", "locked K", "named for vLLM", "K = 0", "no draft model", "n-gram"],
)
def test_the_older_runner_runs_draft_models_alone(
    vllm_engine: "VllmEngine", settings: EngineSettings, runner: str | None
) -> None:
    from completion_server.engine.vllm import arguments, environment

    given = arguments.engine_args(settings).get("speculative_config")
    assert environment.engine_environment(given, {}).get(environment.RUNNER) == runner


def test_full_cuda_graphs_need_an_engine_without_a_schedule(vllm_engine: "VllmEngine") -> None:
    from completion_server.engine.vllm import arguments as module

    settings = EngineSettings(model="m", draft_model="d", full_cuda_graphs=True)
    assert "num_speculative_tokens_per_batch_size" not in module.engine_args(settings)["speculative_config"]
    ngram = EngineSettings(model="m", draft_model="ngram", full_cuda_graphs=True)
    assert "num_speculative_tokens_per_batch_size" in module.engine_args(ngram)["speculative_config"]
    assert module.settings_locked_reason(settings) == ""


def test_only_a_gpu_gets_the_step_sizes_of_a_gpu(vllm_engine: "VllmEngine", monkeypatch: pytest.MonkeyPatch) -> None:
    from completion_server.engine.vllm import arguments as module

    sizes = {"max_num_batched_tokens", "long_prefill_token_threshold", "performance_mode"}
    settings = EngineSettings(model="m", vllm={"max_num_batched_tokens": 4096})
    assert not sizes & module.engine_args(EngineSettings(model="m")).keys()
    monkeypatch.setattr(module, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    assert sizes <= module.engine_args(settings).keys()
    assert module.engine_args(settings)["max_num_batched_tokens"] == 4096


def test_a_vllm_without_schedules_is_started_without_one(
    vllm_engine: "VllmEngine", monkeypatch: pytest.MonkeyPatch
) -> None:
    from completion_server.engine.vllm import arguments as module

    older = make_dataclass("SpeculativeConfig", ["method", "num_speculative_tokens"])
    monkeypatch.setattr(module, "SpeculativeConfig", older)
    settings = EngineSettings(model="m", draft_model="d")
    assert "num_speculative_tokens_per_batch_size" not in module.engine_args(settings)["speculative_config"]
    assert "this vLLM has no" in module.settings_locked_reason(settings)
