"""Helpers for tests of the scripted engine in virtual time."""

import asyncio

from completion_server.engine.interface import GenerationRequest, Output
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes

TIMES = ServiceTimes(
    prefill_base_s=0.010,
    prefill_per_token_s=0.001,
    decode_base_s=0.005,
    decode_per_seq_s=0.001,
    draft_s=0.002,
    verify_per_token_s=0.0005,
)


def now() -> float:
    return asyncio.get_running_loop().time()


def letters(_request: GenerationRequest) -> list[str]:
    return list("abcdefghijklmnopqrstuvwxyz")


def request(name: str, num_prompt: int = 10, max_tokens: int = 5, **fields: object) -> GenerationRequest:
    return GenerationRequest(name, list(range(num_prompt)), max_tokens, **fields)  # type: ignore[arg-type]


async def started(script: object = letters, times: ServiceTimes = TIMES, **kwargs: object) -> ScriptedEngine:
    engine = ScriptedEngine(script, times, **kwargs)  # type: ignore[arg-type]
    await engine.start()
    return engine


async def collect(engine: ScriptedEngine, one: GenerationRequest) -> list[tuple[float, Output]]:
    return [(round(now(), 6), output) async for output in engine.generate(one)]


def times_of(outputs: list[tuple[float, Output]]) -> list[float]:
    return [time for time, _ in outputs]
