"""Part `outage`: what users notice when Redis goes away.

A server with the scripted engine, the completion cache and leased limits. Twenty users ask at a constant rate, while
Redis is killed and started, suspended and resumed. The limits of users are the default ones, and prompts have about
1,500 characters. Figures: requests that failed at any time, and the 99th percentile of the time to the first text or
end with Redis, in the first second without it, and after that. A second server has the same users ask while a relay
holds back Redis's answers for 20 ms each, and while it doesn't, in turns.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from loadtest.bench.common.figures import rounded
from loadtest.bench.common.relay import Relay
from loadtest.bench.common.server import ServerProcess
from loadtest.bench.replicas.options import Figures, Options, Part
from loadtest.bench.replicas.servers import SCRIPTED
from loadtest.bench.replicas.shared.asking import Asked, EditorConnection, OpenLoop, p99_ms
from loadtest.bench.replicas.shared.redis_process import RedisProcess, shared_by

_SLOW_S = 0.02
_WINDOWS = 4
_SETTINGS = (*SCRIPTED, "admission.trust_user_names=true", "shed.when=never", "cache.enabled=true")
_SETTLE_S = 1.0
"""Left out after each change: a window has Redis for all its time, or not at all. The first second without Redis is
measured apart."""


@dataclass(frozen=True, slots=True)
class Outages:
    """The figures of one run."""

    num_requests: int
    failures: Counter[str]
    """Requests that did not end well, at any time, by reason."""
    p99_up_ms: float
    p99_down_ms: float
    p99_first_second_ms: float
    """In the first second of each outage, before and after the breaker has opened."""

    @property
    def p99_added_ms(self) -> float:
        """The larger of what the first second and the rest of an outage add."""
        return max(self.p99_down_ms, self.p99_first_second_ms) - self.p99_up_ms


def measure(options: Options) -> Figures:
    """Measure; see the module."""
    window_s, rate, rounds = options.seconds / _WINDOWS, options.requests_per_s, 2 * options.rounds
    say = options.console.print
    with RedisProcess() as redis:
        with _server(options, redis.address, "alone") as address:
            found = asyncio.run(take_redis_away(address, redis, rounds, window_s, rate, say))
        with Relay(redis.address) as relay, _server(options, relay.address, "slow") as address:
            slowed = asyncio.run(slow_redis_down(address, relay, rounds, window_s, rate, say))
    failures = found.failures + slowed.failures
    if failures:
        say(f"failed requests: {dict(failures)}")
    return {
        "redis_down_requests": found.num_requests,
        "redis_down_failed": found.failures.total(),
        "redis_up_p99_ms": rounded(found.p99_up_ms, 1),
        "redis_down_p99_ms": rounded(found.p99_down_ms, 1),
        "redis_down_first_second_p99_ms": rounded(found.p99_first_second_ms, 1),
        "redis_down_p99_added_ms": rounded(found.p99_added_ms, 1),
        "redis_slow_failed": slowed.failures.total(),
        "redis_slow_p99_added_ms": rounded(slowed.p99_slow_ms - slowed.p99_ms, 1),
    }


@contextmanager
def _server(options: Options, redis_address: str, name: str) -> Iterator[str]:
    """Run a server, and yield its address."""
    server = ServerProcess(options.config, (*_SETTINGS, *shared_by(redis_address, name), *options.overrides), name)
    try:
        yield server.ready["address"]
    finally:
        server.stop()


async def take_redis_away(
    address: str, redis: RedisProcess, rounds: int, window_s: float, rate: float, progress: Callable[[str], None]
) -> Outages:
    """Ask at a constant rate while Redis is killed, started, suspended and resumed in turn."""
    up: list[Asked] = []
    down: list[Asked] = []
    first: list[Asked] = []
    # A killed Redis is started as another process, so its methods are called, not those of the process.
    ways = (("killed", redis.stop, redis.restart), ("suspended", redis.suspend, redis.resume))
    async with EditorConnection(address) as connection:
        asking = OpenLoop(connection, rate)
        await asking.open_documents()
        await asking.window(_SETTLE_S)
        for number in range(rounds):
            name, take, give = ways[number % len(ways)]
            progress(f"round {number + 1} of {rounds}: Redis is {name}")
            up += await asking.window(window_s)
            await asyncio.to_thread(take)
            first += await asking.window(_SETTLE_S)
            down += await asking.window(window_s)
            await asyncio.to_thread(give)
            await asking.window(2 * _SETTLE_S)
    return Outages(len(asking.every), _failures(asking), p99_ms(up), p99_ms(down), p99_ms(first))


@dataclass(frozen=True, slots=True)
class Slowed:
    """The figures with a Redis that answers late."""

    failures: Counter[str]
    p99_ms: float
    p99_slow_ms: float


async def slow_redis_down(
    address: str, relay: Relay, rounds: int, window_s: float, rate: float, progress: Callable[[str], None]
) -> Slowed:
    """Ask at a constant rate while Redis answers in time and late in turn."""
    windows: dict[float, list[Asked]] = {0.0: [], _SLOW_S: []}
    async with EditorConnection(address) as connection:
        asking = OpenLoop(connection, rate)
        await asking.open_documents()
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}: Redis is slow")
            for delay_s, window in windows.items():
                relay.delay_s = delay_s
                await asking.window(_SETTLE_S)
                window += await asking.window(window_s)
    return Slowed(_failures(asking), p99_ms(windows[0.0]), p99_ms(windows[_SLOW_S]))


def _failures(asking: OpenLoop) -> Counter[str]:
    return Counter(each.reason for each in asking.every if not each.is_answered)


PART = Part("outage", measure)
