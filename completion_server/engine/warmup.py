"""Warms an engine up with real requests: prefill, decode, prefix cache and speculation."""

import asyncio
from contextlib import aclosing
from typing import NamedTuple

from completion_server.engine.interface import Engine, EngineDeadError, GenerationRequest

_MAX_PROMPT_TOKENS = 1024
_NUM_CONCURRENT = 4
_NUM_TOKENS = 16


async def warm_up(engine: Engine, step_timeout_s: float) -> None:
    """Run a long prompt, the same prompt from the cache, and a small batch.

    Raises:
        EngineDeadError: the engine did not survive it, or gave no output for `step_timeout_s`.

    """
    room = engine.info.max_model_len - _NUM_TOKENS - engine.info.num_speculative_tokens - 1
    long_prompt = [1 + i % 7 for i in range(max(1, min(_MAX_PROMPT_TOKENS, room)))]
    await run_to_end(engine, GenerationRequest("warm-up-long", long_prompt, _NUM_TOKENS), step_timeout_s)
    await run_to_end(engine, GenerationRequest("warm-up-cached", long_prompt, _NUM_TOKENS), step_timeout_s)
    batch = (GenerationRequest(f"warm-up-{i}", long_prompt[: 32 + i], _NUM_TOKENS) for i in range(_NUM_CONCURRENT))
    await asyncio.gather(*(run_to_end(engine, request, step_timeout_s) for request in batch))


class Completed(NamedTuple):
    """Numbers of tokens of a request that ran to its end, and seconds of the event loop."""

    num_tokens: int
    num_accepted: int
    """Accepted drafts among them."""
    first_s: float
    """Until the first output."""
    rest_s: float
    """From the first to the last output."""


async def run_to_end(engine: Engine, request: GenerationRequest, step_timeout_s: float) -> Completed:
    """Run a request and return what it took.

    Raises:
        EngineDeadError: the engine did not survive it, or gave no output for `step_timeout_s`.

    """
    num_tokens = num_accepted = 0
    loop = asyncio.get_running_loop()
    begun_at = loop.time()
    first_at = last_at = None
    try:
        async with asyncio.timeout(step_timeout_s) as timeout, aclosing(engine.generate(request)) as outputs:
            async for output in outputs:
                num_tokens, num_accepted = num_tokens + output.num_tokens, output.accepted_draft_tokens
                last_at = loop.time()
                first_at = last_at if first_at is None else first_at
                timeout.reschedule(last_at + step_timeout_s)
    except TimeoutError as error:
        msg = f"no output for {step_timeout_s:g} s while the engine warms up"
        raise EngineDeadError(msg) from error
    first_at = loop.time() if first_at is None else first_at
    return Completed(num_tokens, num_accepted, first_at - begun_at, (last_at or first_at) - first_at)
