"""Runs the real service for users of several tenants, with all its caches, in virtual time.

The scripted engine simulates a prefix cache, and its steps vary by a tenth. Prompts are the characters of their texts.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

from completion_server.core.outcome import CacheLevel, End
from completion_server.core.request import Caller, Mode, Request
from completion_server.engine.scripted.engine import SMALL_MODEL_ON_TWO_CORES, ScriptedEngine
from completion_server.engine.settings import CacheScope, EngineSettings
from completion_server.engine.supervisor import SupervisedEngine
from completion_server.requests.isolation import Isolation
from completion_server.requests.limits.settings import AdmissionSettings
from completion_server.requests.scheduling.settings import ShedSettings
from completion_server.requests.service import Service, ServiceParts
from completion_server.requests.settings import ServingSettings
from completion_server.state.cache.cache import make_cache
from completion_server.state.cache.keys import CompletionKeys
from completion_server.state.secret import Secret
from completion_server.state.settings import CacheSettings, RedisSettings
from completion_server.text.prompt.builder import Prompt
from loadtest.simulation.virtual_time import LoopClock
from tests.support.constants import with_constants

_MAX_TOKENS, _SECRET, _JITTER = 8, bytes(32), 0.1


class Seen(NamedTuple):
    """What an attacker sees of its answer."""

    ttft_s: float
    is_hit: bool


Ask = Callable[[str, str, str, bool, Callable[[], None]], Awaitable[Seen]]
"""Asks as a tenant's user for the completion of a text, from the completion cache or not; calls back at its text."""
World = AbstractAsyncContextManager[Ask]


class _Prompts:
    """Prompts with a token for each character."""

    def build(self, request: Request) -> Prompt:
        """Return the prompt."""
        return Prompt(list(map(ord, request.prefix)), (), len(request.prefix), len(request.prefix))

    def expected_new_tokens(self, request: Request) -> int:
        """Return the number of tokens."""
        return len(request.prefix)


@asynccontextmanager
async def run_tenants(seed: int, scope: CacheScope = "tenant") -> AsyncIterator[Ask]:
    """Run a server whose callers ask as users of tenants; in virtual time only.

    `seed` is that of the engine's times.
    """
    clock, chance, secret = LoopClock(), random.Random(f"{seed} times"), Secret(_SECRET)
    isolation, numbers = Isolation(_SECRET, scope), itertools.count(1)
    cache = make_cache(CacheSettings(), RedisSettings(), secret, None, clock, lambda _event: None)
    assert cache is not None
    cache.use_keys(CompletionKeys(_SECRET, (), isolation.salt, is_tenant_wide=scope == "tenant"))
    engine = SupervisedEngine(
        lambda: ScriptedEngine(
            lambda _request: (f" w{number}" for number in itertools.count()),
            SMALL_MODEL_ON_TWO_CORES,
            lengthen=lambda seconds: seconds * chance.lognormvariate(0, _JITTER),
        ),
        with_constants(EngineSettings(warm_up=False), heartbeat_s=0),
        clock,
    )
    settings = ServingSettings(
        AdmissionSettings(user_requests_per_s=0, user_tokens_per_s=0), shed=ShedSettings(when="never", lag_ms=0)
    )
    service = Service(
        settings, engine, _Prompts(), clock, lambda _event: None, ServiceParts(isolation=isolation, cache=cache)
    )

    async def ask(tenant: str, user: str, text: str, is_kept: bool, on_text: Callable[[], None]) -> Seen:
        number, begin, first = next(numbers), clock.now(), 0.0
        caller = Caller(user, "s", tenant, is_verified=True)
        completion = service.open(
            Request(
                str(number),
                caller,
                number,
                document_uri="file:///a.py",
                language_id="python",
                prefix=text,
                suffix="",
                max_tokens=_MAX_TOKENS,
                received_at=begin,
                mode=Mode.MULTI_LINE,
                use_completion_cache=is_kept,
            )
        )
        changed = asyncio.Event()
        completion.listen(changed.set)
        while True:
            await changed.wait()
            changed.clear()
            part = completion.take_nowait()
            if part is not None and not first:
                first = clock.now()
                on_text()
            if isinstance(part, End):
                completion.note_end_written()
                usage = part.usage
                is_hit = usage.cached_prompt_tokens or usage.is_shared or usage.cache_level is not CacheLevel.NONE
                return Seen(first - begin, bool(is_hit))

    await engine.start()
    tasks = [asyncio.create_task(service.runner.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(0)
    service.gate.set_engine_ready(True)
    yield ask
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.stop()
