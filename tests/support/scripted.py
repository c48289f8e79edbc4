"""Helpers for tests in virtual time, and for those of the scripted engine."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, TypeVar

from completion_server.engine.interface import GenerationRequest, Output
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from loadtest.simulation import virtual_time

P = ParamSpec("P")
T = TypeVar("T")
AsyncTest = Callable[..., Coroutine[Any, Any, None]]

TIMES = ServiceTimes(
    prefill_base_s=0.010,
    prefill_per_token_s=0.001,
    decode_base_s=0.005,
    decode_per_seq_s=0.001,
    draft_s=0.002,
    verify_per_token_s=0.0005,
)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in virtual time. The tasks that it leaves are cancelled."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        virtual_time.run(test(*args, **kwargs))

    return run


def with_first(make: Callable[[], AbstractAsyncContextManager[T]]) -> Callable[[AsyncTest], Callable[..., None]]:
    """Run an async test in virtual time inside a context, whose value is its first argument."""

    def decorate(test: AsyncTest) -> Callable[..., None]:
        @functools.wraps(test)
        @in_virtual_time
        async def run(**fixtures: Any) -> None:
            async with make() as given:
                await test(given, **fixtures)

        _, *others = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return run

    return decorate


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
