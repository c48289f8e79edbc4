"""Part `supersede`: how long a request lives after a newer one of its user was sent to another replica.

Two replicas with the scripted engine and a Redis. A user asks on one, and 30 ms after its first text, with another
editor, on the other one; users take turns. The time is from the send of the newer request until the older one's end was
read.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from loadtest.bench.common.figures import percentile, rounded
from loadtest.bench.common.server import ServerProcess
from loadtest.bench.replicas.options import Figures, Options, Part
from loadtest.bench.replicas.servers import SCRIPTED
from loadtest.bench.replicas.shared.asking import EditorConnection
from loadtest.bench.replicas.shared.redis_process import RedisProcess, shared_by

_TOKENS = 500
"""More than are generated before the newer request comes."""
_SUPERSEDED = "FINISH_REASON_SUPERSEDED"
_GAP_S = 0.03
_NUM = 100
"""Users for each round."""
ENDURING = (
    *SCRIPTED,
    "admission.trust_user_names=true",
    "admission.user_requests_per_s=0",
    "admission.user_tokens_per_s=0",
    "shed.when=never",
    f"limits.max_tokens={_TOKENS}",
    "cache.enabled=false",
)
"""Settings of a server that lets a request run for seconds and sheds none."""


@dataclass(frozen=True, slots=True)
class Supersedes:
    """The figures of one run."""

    num: int
    num_not_superseded: int
    p50_ms: float
    """From the send of the newer request until the older one's end was read."""
    p99_ms: float


def measure(options: Options) -> Figures:
    """Measure; see the module."""
    with ExitStack() as stack:
        redis = stack.enter_context(RedisProcess())
        addresses = []
        for name in ("left", "right"):
            server = ServerProcess(
                options.config, (*ENDURING, *shared_by(redis.address, name), *options.overrides), name
            )
            stack.callback(server.stop)
            addresses.append(server.ready["address"])
        num = _NUM * options.rounds
        found = asyncio.run(move_users((addresses[0], addresses[1]), num, lambda done: _say(options, done, num)))
    return {
        "supersede_p50_ms": rounded(found.p50_ms, 1),
        "supersede_p99_ms": rounded(found.p99_ms, 1),
        "supersede_missed": found.num_not_superseded,
    }


def _say(options: Options, done: int, num: int) -> None:
    if done % _NUM == 0:
        options.console.print(f"{done} of {num} users have moved")


async def move_users(addresses: tuple[str, str], num: int, progress: Callable[[int], None]) -> Supersedes:
    """Ask `num` times on one server, and shortly after on the other, as the same user with two editors."""
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
            progress(number + 1)
    return Supersedes(num, num - len(took_ms), percentile(took_ms, 50), percentile(took_ms, 99))


PART = Part("supersede", measure)
