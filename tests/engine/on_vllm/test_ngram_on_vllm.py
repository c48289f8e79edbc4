"""Drafts copied from the prompt, on the real engine."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from completion_server.engine.interface import NGRAM, GenerationRequest, constant_lookup
from tests.engine.contract_checks import prompt, run_request
from tests.support.vllm import make_vllm_engine

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

pytestmark = [pytest.mark.serial, pytest.mark.full]


@pytest_asyncio.fixture
async def ngram_engine() -> "AsyncIterator[VllmEngine]":
    """Yield an engine without a draft model that drafts from prompts."""
    engine = make_vllm_engine(f"engine.draft_model={NGRAM}")
    await engine.start()
    yield engine
    await engine.stop()


async def test_a_prompt_that_repeats_itself_gives_drafts_and_the_same_text(ngram_engine: "VllmEngine") -> None:
    info, control = ngram_engine.info, ngram_engine.speculation
    assert (info.draft_model, info.num_speculative_tokens) == (NGRAM, 3)
    assert control is not None
    token_ids = prompt(24, 7) * 4
    drafted = await run_request(ngram_engine, GenerationRequest("drafted", token_ids, 48))
    control.switch_off()
    without = await run_request(ngram_engine, GenerationRequest("off", token_ids, 48))
    control.set_lookup(constant_lookup(2, info.max_num_seqs))
    fewer = await run_request(ngram_engine, GenerationRequest("fewer", token_ids, 48))
    assert drafted.text == without.text == fewer.text
    assert drafted.last.accepted_draft_tokens > 0
    assert drafted.last.drafted_tokens > fewer.last.drafted_tokens > without.last.drafted_tokens == 0
    # Such drafts have no KV, so a prompt computed while they were off is as good as any other.
    assert fewer.last.cached_prompt_tokens > 0
