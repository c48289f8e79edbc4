"""Part `outage`: what users notice when Redis goes away.

A server with the scripted engine, the completion cache and leased limits. Twenty users ask at a constant rate, while
Redis is killed and started, suspended and resumed. The limits of users are the default ones, and prompts have about
1,500 characters. Figures: requests that failed at any time, and the 99th percentile of the time to the first text or
end with Redis, in the first second without it, and after that. A second server has the same users ask while a relay
holds back Redis's answers for 20 ms each, and while it doesn't, in turns.
"""

import asyncio
from collections import Counter

from rich.console import Console

from loadtest.bench.replicas.asking import Asked, EditorConnection, OpenLoop, p99_ms
from loadtest.bench.replicas.options import Figures, Options
from loadtest.bench.replicas.redis_process import RedisProcess, shared_by
from loadtest.bench.replicas.servers import SCRIPTED
from loadtest.bench.runner.figures import rounded
from loadtest.bench.runner.relay import Relay
from loadtest.bench.runner.server import ServerProcess

_SLOW_S = 0.02
_WINDOWS = 4
_SETTINGS = (*SCRIPTED, "admission.trust_user_names=true", "shed.when=never", "cache.enabled=true")
_SETTLE_S = 1.0
"""Left out after each change: a window has Redis for all its time, or not at all. The first second without Redis is
measured apart."""
_UP, _FIRST, _DOWN = "with Redis", "in the first second without it", "after that"

Windows = dict[str, list[Asked]]


def measure(options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    with RedisProcess() as redis:
        with _server(options, redis.address, "alone") as server:
            asking, windows = asyncio.run(_take_redis_away(server.ready["address"], redis, options, console))
        with Relay(redis.address) as relay, _server(options, relay.address, "slow") as server:
            slowed, in_time_ms, late_ms = asyncio.run(
                _slow_redis_down(server.ready["address"], relay, options, console)
            )
    failures, slow_failures = _failures(asking), _failures(slowed)
    if failures or slow_failures:
        console.print(f"failed requests: {dict(failures + slow_failures)}")
    up_ms, first_ms, down_ms = (p99_ms(windows[name]) for name in (_UP, _FIRST, _DOWN))
    return {
        "redis_down_requests": len(asking.every),
        "redis_down_failed": failures.total(),
        "redis_up_p99_ms": rounded(up_ms, 1),
        "redis_down_p99_ms": rounded(down_ms, 1),
        "redis_down_first_second_p99_ms": rounded(first_ms, 1),
        "redis_down_p99_added_ms": rounded(max(down_ms, first_ms) - up_ms, 1),
        "redis_slow_failed": slow_failures.total(),
        "redis_slow_p99_added_ms": rounded(late_ms - in_time_ms, 1),
    }


def _server(options: Options, redis_address: str, name: str) -> ServerProcess:
    return ServerProcess(options.config, (*_SETTINGS, *shared_by(redis_address, name), *options.overrides), name)


async def _take_redis_away(
    address: str, redis: RedisProcess, options: Options, console: Console
) -> tuple[OpenLoop, Windows]:
    """Ask at a constant rate while Redis is killed, started, suspended and resumed in turn."""
    found: Windows = {_UP: [], _FIRST: [], _DOWN: []}
    window_s, rounds = options.seconds / _WINDOWS, 2 * options.rounds
    # A killed Redis is started as another process, so its methods are called, not those of the process.
    ways = (("killed", redis.stop, redis.restart), ("suspended", redis.suspend, redis.resume))
    async with EditorConnection(address) as connection:
        asking = OpenLoop(connection, options.requests_per_s)
        await asking.open_documents()
        await asking.window(_SETTLE_S)
        for number in range(rounds):
            name, take, give = ways[number % len(ways)]
            console.print(f"round {number + 1} of {rounds}: Redis is {name}")
            found[_UP] += await asking.window(window_s)
            await asyncio.to_thread(take)
            found[_FIRST] += await asking.window(_SETTLE_S)
            found[_DOWN] += await asking.window(window_s)
            await asyncio.to_thread(give)
            await asking.window(2 * _SETTLE_S)
    return asking, found


async def _slow_redis_down(
    address: str, relay: Relay, options: Options, console: Console
) -> tuple[OpenLoop, float, float]:
    """Ask at a constant rate while Redis answers in time and late in turn; return the 99th percentiles of both."""
    windows: dict[float, list[Asked]] = {0.0: [], _SLOW_S: []}
    rounds = 2 * options.rounds
    async with EditorConnection(address) as connection:
        asking = OpenLoop(connection, options.requests_per_s)
        await asking.open_documents()
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}: Redis is slow")
            for delay_s, window in windows.items():
                relay.hold_back(delay_s)
                await asking.window(_SETTLE_S)
                window += await asking.window(options.seconds / _WINDOWS)
    return asking, p99_ms(windows[0.0]), p99_ms(windows[_SLOW_S])


def _failures(asking: OpenLoop) -> Counter[str]:
    return Counter(each.reason for each in asking.every if not each.is_answered)
