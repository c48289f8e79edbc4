"""Part `supersede`: how long a request lives after a newer one of its user was sent to another replica.

Two replicas with the scripted engine and a Redis. A user asks on one, and 30 ms after its first text, with another
editor, on the other one; users take turns. The time is from the send of the newer request until the older one's end was
read.
"""

import asyncio
import time
from contextlib import ExitStack

from rich.console import Console

from loadtest.bench.replicas.asking import EditorConnection
from loadtest.bench.replicas.options import Figures, Options
from loadtest.bench.replicas.redis_process import RedisProcess, shared_by
from loadtest.bench.replicas.servers import SCRIPTED
from loadtest.bench.runner.figures import percentile, rounded
from loadtest.bench.runner.server import ServerProcess

_TOKENS = 500
"""More than are generated before the newer request comes."""
_SUPERSEDED = "FINISH_REASON_SUPERSEDED"
_GAP_S = 0.03
_NUM = 100
"""Users for each round."""
_ENDURING = (
    *SCRIPTED,
    "admission.trust_user_names=true",
    "admission.user_requests_per_s=0",
    "admission.user_tokens_per_s=0",
    "shed.when=never",
    f"limits.max_tokens={_TOKENS}",
    "cache.enabled=false",
)
"""Settings of a server that lets a request run for seconds and sheds none."""


def measure(options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    num = _NUM * options.rounds
    with ExitStack() as stack:
        redis = stack.enter_context(RedisProcess())
        addresses = []
        for name in ("left", "right"):
            settings = (*_ENDURING, *shared_by(redis.address, name), *options.overrides)
            server = stack.enter_context(ServerProcess(options.config, settings, name))
            addresses.append(server.ready["address"])
        took_ms = asyncio.run(_move_users(addresses, num, console))
    return {
        "supersede_p50_ms": rounded(percentile(took_ms, 50), 1),
        "supersede_p99_ms": rounded(percentile(took_ms, 99), 1),
        "supersede_missed": num - len(took_ms),
    }


async def _move_users(addresses: list[str], num: int, console: Console) -> list[float]:
    """Ask `num` times on one server, and shortly after on the other, as the same user with two editors.

    Return the milliseconds from the send of the newer request until the older one's end was read, for each older
    request that was superseded.
    """
    took_ms: list[float] = []
    async with EditorConnection(addresses[0]) as first, EditorConnection(addresses[1]) as second:
        for number in range(num):
            older, newer = (first, second) if number % 2 else (second, first)
            begun = asyncio.Event()
            # A user each, so that no turn waits for the end of the one before.
            user = f"mover-{number}"
            running = asyncio.create_task(older.ask(user, f"first = {number} + ", _TOKENS, session="a", begun=begun))
            await begun.wait()
            await asyncio.sleep(_GAP_S)
            sent_at = time.perf_counter()
            other = asyncio.create_task(newer.ask(user, f"second = {number} + ", 1, session="b"))
            ended = await running
            await other
            if ended.reason == _SUPERSEDED:
                took_ms.append((ended.ended_at - sent_at) * 1000)
            if (number + 1) % _NUM == 0:
                console.print(f"{number + 1} of {num} users have moved")
    return took_ms
