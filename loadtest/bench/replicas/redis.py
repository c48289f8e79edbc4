"""Parts `supersede` and `outage`: what replicas gain from a Redis, and what users notice while it is away.

supersede: two replicas with the scripted engine and a Redis. A user asks on one, and 30 ms after its first text, with
another editor, on the other one. The time is from the send of the newer request until the older one's end was read.

outage: a server with the scripted engine and the completion cache. Twenty users ask at a constant rate, while Redis is
killed and started, suspended and resumed. The limits of users are the default ones, and prompts have about 1,500
characters. Figures: requests that failed at any time, and the 99th percentile of the time to the first text or end with
Redis, in the first second without it, and after that. A second server has the same users ask while a relay holds back
Redis's answers for 20 ms each, and while it doesn't, in turns.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ServiceError
from loadtest.bench.replicas.servers import Figures, Options, RedisProcess, shared_by
from loadtest.bench.runner.figures import percentile
from loadtest.bench.runner.loops import open_loop
from loadtest.bench.runner.relay import Relay
from loadtest.bench.runner.schedule import AsyncClosing, rotated
from loadtest.bench.runner.server import SCRIPTED, ServerProcess

_TRUSTED = "admission.trust_user_names=true"
_CACHED = "cache.enabled=true"
_TIMEOUT_S = 20.0

_LONG_TOKENS = 500
"""More than are generated before the newer request comes."""
_GAP_S = 0.03
_MOVES = 100
"""Users who move, for each round."""
_ENDURING = (
    *SCRIPTED,
    _TRUSTED,
    "admission.user_requests_per_s=0",
    "admission.user_tokens_per_s=0",
    "shed.when=never",
    f"limits.max_tokens={_LONG_TOKENS}",
    "cache.enabled=false",
)
"""Settings of a server that lets a request run for seconds and sheds none."""

_USERS, _TOKENS = 20, 8
_DOCUMENT = "    value = compute(item, 3)\n" * 55
"""About 1,500 characters."""
_SLOW_S = 0.02
_WINDOWS = 4
_SETTLE_S = 1.0
"""Left out after each change: a window has Redis for all its time, or not at all. The first second without Redis is
measured apart."""
_UP, _FIRST, _DOWN = "with Redis", "in the first second without it", "after that"


@dataclass(frozen=True, slots=True)
class Asked:
    """The answer to a request."""

    reason: str
    """The finish reason, the reason of a shed request, or the status of a call that failed."""
    first_ms: float
    """Time from the send to the first text, or to the end of an answer without text."""

    @property
    def is_answered(self) -> bool:
        """Whether it had an answer that was not cut short."""
        return self.reason in {"stop", "length"}


async def ask(
    client: CompletionClient, prefix: str, max_tokens: int, on_text: Callable[[str], object] | None = None
) -> Asked:
    """Ask and read the answer to its end."""
    request = pb.CompleteRequest(
        prefix=prefix, max_tokens=max_tokens, mode=pb.MODE_MULTI_LINE, document_uri="untitled:document"
    )
    sent_at = time.perf_counter()
    try:
        found = await client.complete(request, timeout_s=_TIMEOUT_S, on_text=on_text)
    except ServiceError as error:
        return Asked(error.reason or error.status.name, (time.perf_counter() - sent_at) * 1000)
    first_ms = found.total_ms if found.ttft_ms is None else found.ttft_ms
    return Asked(found.shed_reason or found.finish_reason or "", first_ms)


def measure_supersede(options: Options, console: Console) -> Figures:
    """Measure part `supersede`; see the module."""
    num = _MOVES * options.rounds
    with ExitStack() as stack:
        redis = stack.enter_context(RedisProcess())
        addresses = [
            stack.enter_context(_server(options, redis.address, name, _ENDURING)).ready["address"]
            for name in ("left", "right")
        ]
        took_ms = asyncio.run(_move_users(addresses, num, console))
    return {
        "supersede_p50_ms": percentile(took_ms, 50),
        "supersede_p99_ms": percentile(took_ms, 99),
        "supersede_missed": num - len(took_ms),
    }


async def _move_users(addresses: Sequence[str], num: int, console: Console) -> list[float]:
    """Let users move, every second one in the other direction; return the times of those that were superseded.

    Each move has a user of its own, so that none waits for the end of the one before.
    """
    found = []
    for number in range(num):
        found.append(await _superseded_ms(number, *rotated(addresses, number)))
        if (number + 1) % _MOVES == 0:
            console.print(f"{number + 1} of {num} users have moved")
    return [took_ms for took_ms in found if took_ms is not None]


async def _superseded_ms(number: int, older_at: str, newer_at: str) -> float | None:
    """Return how long a user's older request lived after the newer one was sent; None if it was not superseded."""
    user, begun = f"mover-{number}", asyncio.Event()
    async with CompletionClient(older_at, user=user) as first, CompletionClient(newer_at, user=user) as second:
        await second.connect()
        older = asyncio.create_task(ask(first, f"first = {number} + ", _LONG_TOKENS, lambda _text: begun.set()))
        older.add_done_callback(lambda _task: begun.set())
        await begun.wait()
        await asyncio.sleep(_GAP_S)
        sent_at = time.perf_counter()
        newer = asyncio.create_task(ask(second, f"second = {number} + ", 1))
        ended = await older
        took_ms = (time.perf_counter() - sent_at) * 1000
        await newer
    return took_ms if ended.reason == "superseded" else None


class ConstantUsers(AsyncClosing):
    """Twenty users who ask at a constant rate, whatever the answers take. Each has a document, and types at its end."""

    def __init__(self, address: str, rate: float) -> None:
        """Ask `rate` times a second."""
        self._clients = [CompletionClient(address, user=f"user-{number}") for number in range(_USERS)]
        self._rate = rate
        self._num_asked = 0
        self.every: list[Asked] = []
        """All requests so far."""

    async def aclose(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.aclose()

    async def open_documents(self) -> None:
        """Ask once for each user in turn: the prefix cache has the documents then. These requests do not count."""
        for _ in self._clients:
            await self._ask(0, 0.0)

    async def window(self, seconds: float) -> list[Asked]:
        """Ask for some time, and return the answers."""
        answers = await open_loop(self._rate, seconds, self._ask)
        self.every += answers
        return answers

    @property
    def failures(self) -> Counter[str]:
        """The requests without an answer, by reason."""
        return Counter(each.reason for each in self.every if not each.is_answered)

    async def _ask(self, _number: int, _due: float) -> Asked:
        number = self._num_asked
        self._num_asked += 1
        user = number % _USERS
        return await ask(self._clients[user], f"# user-{user}\n{_DOCUMENT}value_{number} = ", _TOKENS)


def measure_outage(options: Options, console: Console) -> Figures:
    """Measure part `outage`; see the module."""
    settings = (*SCRIPTED, _TRUSTED, "shed.when=never", _CACHED)
    with RedisProcess() as redis:
        with _server(options, redis.address, "alone", settings) as server:
            users, (up_ms, first_ms, down_ms) = asyncio.run(_take_redis_away(server, redis, options, console))
        with Relay(redis.address) as relay, _server(options, relay.address, "slow", settings) as server:
            slowed, (in_time_ms, late_ms) = asyncio.run(_slow_redis_down(server, relay, options, console))
    if failures := users.failures + slowed.failures:
        console.print(f"failed requests: {dict(failures)}")
    return {
        "redis_down_requests": len(users.every),
        "redis_down_failed": users.failures.total(),
        "redis_up_p99_ms": up_ms,
        "redis_down_p99_ms": down_ms,
        "redis_down_first_second_p99_ms": first_ms,
        "redis_down_p99_added_ms": max(down_ms, first_ms) - up_ms,
        "redis_slow_failed": slowed.failures.total(),
        "redis_slow_p99_added_ms": late_ms - in_time_ms,
    }


def _server(options: Options, redis_address: str, name: str, settings: Sequence[str]) -> ServerProcess:
    return ServerProcess(options.config, (*settings, *shared_by(redis_address, name), *options.overrides), name)


async def _take_redis_away(
    server: ServerProcess, redis: RedisProcess, options: Options, console: Console
) -> tuple[ConstantUsers, list[float]]:
    """Ask while Redis is killed, started, suspended and resumed in turn; return the 99th percentiles of the windows."""
    found: dict[str, list[Asked]] = {_UP: [], _FIRST: [], _DOWN: []}
    window_s, rounds = options.seconds / _WINDOWS, 2 * options.rounds
    # A killed Redis is started as another process, so the process is looked up when it is suspended.
    ways = (
        ("killed", redis.stop, redis.restart),
        ("suspended", lambda: redis.process.pause(), lambda: redis.process.resume()),
    )
    async with ConstantUsers(server.ready["address"], options.requests_per_s) as users:
        await users.open_documents()
        await users.window(_SETTLE_S)
        for number in range(rounds):
            name, take, give = ways[number % len(ways)]
            console.print(f"round {number + 1} of {rounds}: Redis is {name}")
            found[_UP] += await users.window(window_s)
            await asyncio.to_thread(take)
            found[_FIRST] += await users.window(_SETTLE_S)
            found[_DOWN] += await users.window(window_s)
            await asyncio.to_thread(give)
            await users.window(2 * _SETTLE_S)
    return users, [_p99_ms(each) for each in found.values()]


async def _slow_redis_down(
    server: ServerProcess, relay: Relay, options: Options, console: Console
) -> tuple[ConstantUsers, list[float]]:
    """Ask while Redis answers in time and late in turn; return the 99th percentiles of both."""
    windows: dict[float, list[Asked]] = {0.0: [], _SLOW_S: []}
    rounds = 2 * options.rounds
    async with ConstantUsers(server.ready["address"], options.requests_per_s) as users:
        await users.open_documents()
        for number in range(rounds):
            console.print(f"round {number + 1} of {rounds}: Redis is slow")
            for delay_s, window in windows.items():
                relay.hold_back(delay_s)
                await users.window(_SETTLE_S)
                window += await users.window(options.seconds / _WINDOWS)
    return users, [_p99_ms(each) for each in windows.values()]


def _p99_ms(window: Sequence[Asked]) -> float:
    return percentile([each.first_ms for each in window], 99)
