"""Real requests through prefill, decode, the prefix cache and speculation, before the first user's."""

import asyncio

from completion_server.engine.interface import Engine, Job

_MAX_PROMPT_TOKENS = 1024
_NUM_CONCURRENT = 4
_NUM_TOKENS = 16


async def warm_up(engine: Engine) -> None:
    """Run one long prompt, the same again from the cache, and a small batch.

    Raises:
        EngineDeadError: the engine did not survive it.

    """
    room = engine.info.max_model_len - _NUM_TOKENS - engine.info.num_speculative_tokens - 1
    long_prompt = [1 + i % 7 for i in range(max(1, min(_MAX_PROMPT_TOKENS, room)))]
    await _run(engine, Job("warm-up-long", long_prompt, _NUM_TOKENS))
    await _run(engine, Job("warm-up-cached", long_prompt, _NUM_TOKENS))
    batch = (Job(f"warm-up-{i}", long_prompt[: 32 + i], _NUM_TOKENS) for i in range(_NUM_CONCURRENT))
    await asyncio.gather(*(_run(engine, job) for job in batch))


async def _run(engine: Engine, job: Job) -> None:
    async for _output in engine.generate(job):
        pass
