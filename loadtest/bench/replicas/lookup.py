"""Part `lookup`: how long the completion cache takes to look a request up, in process.

The server's cache, built as the server builds it, with 5,000 completions. Level 1: prefixes of 3,000 characters and of
100 KB, the names' hashing included. Level 2: 100 lookups a second with 3,000 characters, in a Redis on loopback, with
encryption; the time ends when the answer is handed over. Each lookup types into another completion.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

from rich.console import Console

from completion_server.core.clock import MonotonicClock
from completion_server.core.outcome import CachedAnswer, FinishedAnswer, FinishReason
from completion_server.core.request import Caller, Mode, Request
from completion_server.state.cache.cache import TwoLevelCache, make_cache
from completion_server.state.cache.keys import CompletionKeys, Scopes
from completion_server.state.redis_store import RedisStore
from completion_server.state.secret import Secret
from completion_server.state.settings import CacheSettings, RedisSettings
from loadtest.bench.replicas.servers import Figures, Options, RedisProcess
from loadtest.bench.runner.figures import percentile

_KEPT = 5000
_TYPICAL_CHARS = 3000
_CHARS = {"": _TYPICAL_CHARS, "_100_kb": 100_000}
"""Characters of a prefix by the ending of the figure's name."""
_LOOKUPS = 2000
_SHARED_LOOKUPS = 1000
_PAUSE_S = 0.01
_PATIENCE_S = 5.0
_LINE = "    value = compute(item, 3)\n"
_TEXT = "0123456789"
_ANSWER = FinishedAnswer(_TEXT, FinishReason.STOP, 0, num_prompt_tokens=800, num_completion_tokens=10, engine_s=0.1)
# Level 1 keeps all of them, and an answer counts however late it comes: the time is what is measured.
_SETTINGS = CacheSettings(local_ttl_s=3600, lookup_ms=1000, encrypt=True)
_SECRET = Secret(bytes(32))
_BENCH = Caller("user", "editor", is_verified=True)


def measure(_options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    times_ms = {("l1", suffix): _local_ms(chars) for suffix, chars in _CHARS.items()}
    console.print("level 1 is measured", style="dim")
    with RedisProcess() as redis:
        shared = times_ms["l2", ""] = asyncio.run(_shared_ms(redis.address))
    found = {
        f"{level}_lookup_p{percent}_ms{suffix}": percentile(own, percent)
        for (level, suffix), own in times_ms.items()
        for percent in (50, 99)
    }
    return found | {"l2_lookups_unanswered": _SHARED_LOOKUPS - len(shared)}


def _requests(chars: int) -> Callable[[int, int], Request]:
    """Return a function that makes the request in a document, after some characters of its completion were typed."""
    text = (_LINE * (chars // len(_LINE) + 1))[:chars]

    def make(number: int, num_typed: int) -> Request:
        prefix = f"{text}\nx{number} = {_TEXT[:num_typed]}"
        uri = f"file:///{number}.py"
        return Request("r", _BENCH, 0, uri, "python", prefix, _LINE * 30, 64, 0.0, mode=Mode.MULTI_LINE)

    return make


def _filled_cache(
    make: Callable[[int, int], Request], settings: CacheSettings, store: RedisStore | None = None
) -> TwoLevelCache:
    """Return a cache that was given a completion for each document."""
    redis = RedisSettings() if store is None else store.settings
    cache = make_cache(settings, redis, _SECRET, store, MonotonicClock(), lambda _event: None)
    assert cache is not None
    cache.use_keys(CompletionKeys(_SECRET.derive("cache names"), ("model",), Scopes(lambda caller: caller.owner)))
    for number in range(_KEPT):
        lookup = cache.look_up_nowait(make(number, 0))
        assert lookup is not None
        lookup.keep(_ANSWER)
    return cache


def _sample(num: int) -> Iterator[tuple[int, int]]:
    """Yield completions, in an order that is not that of their making, and how much of their text is typed."""
    for number in range(num):
        yield number * 7919 % _KEPT, number % len(_TEXT)


def _local_ms(chars: int) -> list[float]:
    make, times = _requests(chars), []
    cache = _filled_cache(make, _SETTINGS)
    for number, num_typed in _sample(_LOOKUPS):
        request = make(number, num_typed)
        begin = time.perf_counter()
        lookup = cache.look_up_nowait(request)
        times.append((time.perf_counter() - begin) * 1000)
        assert lookup is not None
        assert lookup.answer is not None, "level 1 lost a completion"
    return times


async def _shared_ms(address: str) -> list[float]:
    store, times = RedisStore(RedisSettings(addresses=(address,)), MonotonicClock()), []
    make = _requests(_TYPICAL_CHARS)
    running = asyncio.create_task(store.run())
    try:
        while not store.is_available:  # noqa: ASYNC110 - the first probe connects
            await asyncio.sleep(_PAUSE_S)
        settings = dataclasses.replace(_SETTINGS, local_bytes=0, shared_ttl_s=3600, look_up="always")
        cache = _filled_cache(make, settings, store)
        while int(await store.call_nowait("DBSIZE")) < _KEPT:  # noqa: ASYNC110 - Redis can only be polled
            await asyncio.sleep(_PAUSE_S)
        for number, num_typed in _sample(_SHARED_LOOKUPS):
            await asyncio.sleep(_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                times.append(await asyncio.wait_for(_shared_lookup_ms(cache, make(number, num_typed)), _PATIENCE_S))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return times


async def _shared_lookup_ms(cache: TwoLevelCache, request: Request) -> float:
    """Look a request up in level 1, which has nothing, and in level 2."""
    answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def take(_answer: CachedAnswer) -> bool:
        if not answered.done():
            answered.set_result(time.perf_counter())
        return True

    begin = time.perf_counter()
    lookup = cache.look_up_nowait(request)
    assert lookup is not None
    lookup.fetch_nowait(take)
    return (await answered - begin) * 1000
