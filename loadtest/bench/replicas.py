"""Measures several replicas of the server, in two parts.

supersede: two replicas with the scripted engine and a Redis. A user asks on one, and 30 ms after its first text, with
another editor, on the other one. The time is from the send of the newer request until the older one's end was read.

cache: typing users on servers with the real engine in turn: without the completion cache, with level 1, and with level
2 alone, as a user finds it whose requests reach another replica each time. The editors keep no completions.
"""

import asyncio
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import click
from rich.console import Console

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ServiceError
from loadtest.bench.runner.benchmark import COUNT, ServerOptions, benchmark, for_json, option, percentile, ratio
from loadtest.bench.runner.contest import Contestant, rotated
from loadtest.bench.runner.server import SCRIPTED, ServerProcess
from loadtest.driving.run import run_scenario
from loadtest.processes.child import Child, StartError, free_port
from loadtest.report.figures import figures
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

_TRUSTED, _CACHED = "admission.trust_user_names=true", "cache.enabled=true"
_TIMEOUT_S, _REDIS_START_S = 20.0, 10.0

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

OFF, LOCAL, SHARED = "off", "l1", "l2"
_EDITORS = 30


class RedisProcess(Contestant):
    """A `redis-server` on loopback that keeps nothing on disk."""

    name = "redis"

    def __init__(self) -> None:
        """Start it. Raises StartError if it is not installed, or did not start."""
        program = shutil.which("redis-server")
        if program is None:
            raise StartError("redis-server is not installed; on Debian: apt-get install redis-server")
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        command = [program, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._begin(Child(self.name, command), lambda child: child.wait_until(self._answers, _REDIS_START_S))

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False


def _shared_by(redis: str, name: str) -> tuple[str, ...]:
    """Return the settings with which a server shares a Redis at HOST:PORT under a name of its own."""
    return (f'redis.addresses=["{redis}"]', f"redis.replica_id={name}")


def _server(options: "_Options", redis_address: str, name: str, settings: Sequence[str]) -> ServerProcess:
    return ServerProcess(options.config, (*settings, *_shared_by(redis_address, name), *options.overrides), name)


async def _ask(
    client: CompletionClient, prefix: str, max_tokens: int, on_text: Callable[[str], object] | None = None
) -> str:
    """Ask and read the answer to its end; return its finish reason, or the status of a call that failed."""
    request = pb.CompleteRequest(
        prefix=prefix, max_tokens=max_tokens, mode=pb.MODE_MULTI_LINE, document_uri="untitled:document"
    )
    try:
        found = await client.complete(request, timeout_s=_TIMEOUT_S, on_text=on_text)
    except ServiceError as error:
        return error.status.name
    return found.finish_reason or ""


def _supersede(options: "_Options", _console: Console) -> dict[str, Any]:
    with ExitStack() as stack:
        redis, num = stack.enter_context(RedisProcess()), _MOVES * options.rounds
        servers = [stack.enter_context(_server(options, redis.address, each, _ENDURING)) for each in ("left", "right")]
        took_ms = asyncio.run(_move_users([each.ready["address"] for each in servers], num))
    return {
        "supersede_p50_ms": percentile(took_ms, 50),
        "supersede_p99_ms": percentile(took_ms, 99),
        "supersede_missed": num - len(took_ms),
    }


async def _move_users(addresses: Sequence[str], num: int) -> list[float]:
    """Let users move, every second one in the other direction; return the times of those that were superseded.

    Each move has a user of its own, so that none waits for the end of the one before.
    """
    found = [await _superseded_ms(number, *rotated(addresses, number)) for number in range(num)]
    return [took_ms for took_ms in found if took_ms is not None]


async def _superseded_ms(number: int, older_at: str, newer_at: str) -> float | None:
    """Return how long a user's older request lived after the newer one was sent; None if it was not superseded."""
    user, begun = f"mover-{number}", asyncio.Event()
    async with CompletionClient(older_at, user=user) as first, CompletionClient(newer_at, user=user) as second:
        await second.connect()
        older = asyncio.create_task(_ask(first, f"first = {number} + ", _LONG_TOKENS, lambda _text: begun.set()))
        older.add_done_callback(lambda _task: begun.set())
        await begun.wait()
        await asyncio.sleep(_GAP_S)
        sent_at = time.perf_counter()
        newer = asyncio.create_task(_ask(second, f"second = {number} + ", 1))
        reason = await older
        took_ms = (time.perf_counter() - sent_at) * 1000
        await newer
    return took_ms if reason == "superseded" else None


def _cache(options: "_Options", console: Console) -> dict[str, Any]:
    with RedisProcess() as redis, ExitStack() as stack:
        shared = (_CACHED, "cache.local_bytes=0", "cache.look_up=always", *_shared_by(redis.address, SHARED))
        servers = {}
        for name, own in (
            (OFF, ("cache.enabled=false",)),
            (LOCAL, (_CACHED, "cache.shared=false")),
            (SHARED, shared),
        ):
            settings = (_TRUSTED, *own, *options.overrides)
            servers[name] = stack.enter_context(ServerProcess(options.config, settings, name))
            servers[name].process.pause()
        turns: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
        for number in range(options.rounds):
            tree = Scenario.load("steady").model_dump()
            tree |= {"sessions": _EDITORS, "duration_s": options.seconds, "seed": f"{options.seed}/cache/{number}"}
            tree["documents"] |= {"prefix_chars": 400, "suffix_chars": 100}
            tree["editor"]["cache_entries"] = 0
            for name in rotated(list(servers), number):
                turn = _turn(servers[name], f"{name}-{number}", Scenario.of(tree))
                turns[name].append(turn)
                console.print(f"round {number + 1}: {name}, {turn['seen_per_s']:.2f} seen/s")
    seen = {name: [turn["seen_per_s"] for turn in own] for name, own in turns.items()}
    return {
        "hit_share_l1": fmean(turn["local_hit_share"] for turn in turns[LOCAL]),
        "hit_share_l2": fmean(turn["shared_hit_share"] for turn in turns[SHARED]),
        "seen_ratio_cache_on": ratio(seen[LOCAL], seen[OFF]),
        "seen_ratio_l2_alone": ratio(seen[SHARED], seen[OFF]),
    }


def _turn(server: ServerProcess, name: str, scenario: Scenario) -> dict[str, float]:
    server.process.resume()
    result = run_scenario(scenario, [parse_target(f"{name}=grpc://{server.ready['address']}")], workers=1)
    server.process.pause()
    return figures(result.stats_by_target[name], scenario.criteria)


PARTS = {"supersede": _supersede, "cache": _cache}
"""Each starts what it needs, measures, stops it, and returns its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    part: tuple[str, ...] = option((), "May be repeated.  [all]", click.Choice(list(PARTS)))
    rounds: int = option(4, "Turns of each server.", COUNT, quick=1)
    seconds: float = option(20.0, "Length of a turn.", click.FloatRange(5), quick=5.0)
    seed: int = option(0, "Who types what and when.", int)


@benchmark(_Options, ServiceError)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Measure several replicas as one. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.replicas --part supersede --rounds 2
    """
    found: dict[str, Any] = {}
    for name in options.part or PARTS:
        part = PARTS[name](options, console)
        console.print(f"part {name}: {for_json(part)}")  # a later part may fail
        found |= part
    return found


if __name__ == "__main__":
    main()
