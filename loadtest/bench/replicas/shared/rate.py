"""Part `rate`: how many requests a front end serves in a second of its CPU, with Redis and without.

A thousand editors, open loop, 500 requests/s, on two servers with the scripted engine in turn. Both have the completion
cache; one has Redis beside it: announcements, level 2 of the cache, and leased limits.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtest.bench.common.figures import rounded
from loadtest.bench.common.front_end import editors
from loadtest.bench.common.served import FrontEnd
from loadtest.bench.replicas.options import Figures, Options, Part
from loadtest.bench.replicas.shared.redis_process import RedisProcess, shared_by

_SESSIONS = 1000
_REQUESTS_PER_S = 500.0
_SETTINGS = ("admission.trust_user_names=true", "cache.enabled=true")


@dataclass(frozen=True, slots=True)
class Rates:
    """The figures of one run."""

    cpu_ms_alone: float
    """CPU time of a request without Redis; the best of all turns, since other work can only add to it."""
    cpu_ms_with_redis: float

    @property
    def ratio(self) -> float:
        """Requests in a second of CPU with Redis, over those without."""
        return self.cpu_ms_alone / self.cpu_ms_with_redis


def measure(options: Options) -> Figures:
    """Measure; see the module."""
    with RedisProcess() as redis:
        settings = (*_SETTINGS, *options.overrides)
        found = compare(options.config, settings, redis, options.rounds, _REQUESTS_PER_S, options.seconds)
    return {
        "front_end_cpu_ms": rounded(found.cpu_ms_alone),
        "front_end_cpu_ms_with_redis": rounded(found.cpu_ms_with_redis),
        "front_end_rate_ratio_with_redis": rounded(found.ratio),
    }


def compare(
    config: Path, overrides: Sequence[str], redis: RedisProcess, rounds: int, rate: float, seconds: float
) -> Rates:
    """Send the same traffic to a server with Redis and to one without, in turns."""
    scenario = editors(_SESSIONS, rate, seconds, seed=0)
    console = Console(stderr=True)
    with ExitStack() as stack:
        alone = stack.enter_context(FrontEnd.running(config, overrides, scenario, console))
        with_redis = (*overrides, *shared_by(redis.address, "rate"))
        shared = stack.enter_context(FrontEnd.running(config, with_redis, scenario, console))
        turns = [(alone.turn().cpu_ms, shared.turn().cpu_ms) for _ in range(rounds)]
    return Rates(min(turn[0] for turn in turns), min(turn[1] for turn in turns))


PART = Part("rate", measure)
