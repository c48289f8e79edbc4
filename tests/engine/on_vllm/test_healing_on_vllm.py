"""Answers that begin with given text, in the real engine: with drafts, at each K, greedy and sampled."""

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer

from completion_server.core.request import Sampling
from completion_server.engine.interface import NGRAM, EngineStep, GenerationRequest, constant_lookup
from completion_server.text.prompt.loading import load_prompt_builder
from tests.engine.contract import Result, run_request
from tests.support.models import TARGET
from tests.support.vllm import make_vllm_engine
from tests.unit.text.prompt.prompts import CURSOR, request_at

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = pytest.mark.serial

NUM_TOKENS = 12
NUMBERS = itertools.count()
GREEDY = Sampling()
DOCUMENTS = [
    f"import os\n\n\ndef names(folder):\n    {CURSOR}\n\n\nprint(names('.'))\n",
    f"for number in ra{CURSOR}\n    print(number)\n",
]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    builder = load_prompt_builder(str(TARGET), max_prompt_tokens=512)
    return [builder.build(request_at(document)).token_ids for document in DOCUMENTS]


async def answer(
    engine: "VllmEngine",
    token_ids: list[int],
    begins_with: str = "",
    sampling: Sampling = GREEDY,
    num_extra: int = 0,
    num_tokens: int = NUM_TOKENS,
) -> Result:
    name = f"healing-{next(NUMBERS)}"
    request = GenerationRequest(
        name, token_ids, num_tokens, sampling, begins_with=begins_with, num_beginning_tokens=num_extra
    )
    return await run_request(engine, request)


def set_k(engine: "VllmEngine", k: int) -> None:
    assert engine.speculation is not None
    engine.speculation.set_lookup(constant_lookup(k, engine.info.max_num_seqs))


@pytest.mark.parametrize("k", [0, 3])
async def test_the_text_that_the_model_would_say_anyway_changes_nothing(
    vllm_engine: "VllmEngine", prompts: list[list[int]], k: int
) -> None:
    set_k(vllm_engine, k)
    for prompt in prompts:
        free = await answer(vllm_engine, prompt)
        cuts = [at for at in range(1, 9) if free.text[at - 1 : at].isascii()]
        results = await asyncio.gather(*(answer(vllm_engine, prompt, free.text[:at]) for at in cuts))
        assert [free.text[:at] + each.text for at, each in zip(cuts, results, strict=True)] == [free.text] * len(cuts)
        assert {each.num_tokens for each in results} == {free.num_tokens}, "its tokens count, and cost no further step"
    set_k(vllm_engine, 3)


@pytest.mark.parametrize("begins_with", [" zq_", "é😀", "<|fim_middle|>", "x" * 40])
async def test_any_text_can_be_begun_with_and_drafts_change_nothing(
    vllm_engine: "VllmEngine", prompts: list[list[int]], begins_with: str
) -> None:
    texts = set()
    for k in (0, 3):
        set_k(vllm_engine, k)
        result = await answer(vllm_engine, prompts[0], begins_with, num_extra=45)
        assert begins_with not in result.text
        assert result.num_tokens > 1, "no marker says it"
        texts.add(result.text)
    assert len(texts) == 1


async def test_what_is_given_takes_no_step_of_its_own(prompts: list[list[int]]) -> None:
    """With synchronous scheduling the step that ends a prompt verifies it as drafts, which no figure counts."""
    engine = make_vllm_engine(f"engine.draft_model={NGRAM}")
    steps: list[EngineStep] = []
    await engine.start()
    try:
        engine.watch_steps(steps.append)
        for k, prompt in itertools.product((0, 3), prompts):
            set_k(engine, k)
            free = await answer(engine, prompt)
            cuts = [at for at in range(1, 9) if free.text[at - 1 : at].isascii()]
            del steps[:]
            given = [await answer(engine, prompt, free.text[:at]) for at in cuts]
            assert [free.text[:at] + each.text for at, each in zip(cuts, given, strict=True)] == [free.text] * len(cuts)
            firsts = [step for step in steps if step.has_prompts]
            assert len(firsts) == len(cuts)
            assert any(step.num_tokens > 1 for step in firsts), "else the model chose a longer token at once"
            assert not any(step.drafted for step in firsts)
            assert k or {each.last.drafted_tokens + each.last.accepted_draft_tokens for each in given} == {0}
    finally:
        await engine.stop()


async def test_samples_begin_with_it_and_repeat_by_their_seed(
    vllm_engine: "VllmEngine", prompts: list[list[int]]
) -> None:
    samplings = [Sampling(temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    given = (answer(vllm_engine, prompts[0], "return os.", each) for each in samplings)
    first, again, other = await asyncio.gather(*given)
    assert first.text == again.text != other.text
    assert not first.text.startswith("return")


async def test_an_answer_of_few_tokens_ends_before_a_character_that_has_more(vllm_engine: "VllmEngine") -> None:
    """The model repeats the flag, three tokens for each half of it."""
    document = "print('🇩🇪')\n" * 6 + "print('"
    token_ids = Tokenizer.from_file(str(TARGET / "tokenizer.json")).encode(document, add_special_tokens=False).ids
    results = await asyncio.gather(*(answer(vllm_engine, token_ids, num_tokens=number) for number in range(1, 9)))
    texts = [result.text for result in results]
    assert any(text.startswith("🇩") for text in texts)
    assert all(text.startswith(before) for before, text in itertools.pairwise(texts))
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in texts)
