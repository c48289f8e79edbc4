"""What the whole run shares: one real engine, started when the first test asks for it."""

import signal
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

import pytest_asyncio

from completion_server.app import make_engine_factory
from tests.support.models import DRAFT
from tests.support.server import make_config

if TYPE_CHECKING:
    from completion_server.engine.vllm.engine import VllmEngine

# A shell ignores it for what it starts in the background, and so would every command that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def make_vllm_engine(*overrides: str) -> "VllmEngine":
    """Return a vLLM engine on the embedded models, not yet started."""
    sizes = ("engine.num_speculative_tokens=3", "engine.max_num_seqs=16", "scheduling.max_slots=16")
    config = make_config(f"engine.draft_model={DRAFT}", *sizes, *overrides)
    return cast("VllmEngine", make_engine_factory(config)())


@pytest_asyncio.fixture(scope="session")
async def vllm_engine() -> "AsyncIterator[VllmEngine]":
    """A real engine; tests leave it idle."""
    engine = make_vllm_engine()
    await engine.start()
    yield engine
    await engine.stop()
