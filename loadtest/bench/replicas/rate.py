"""Part `rate`: how many requests a front end serves in a second of its CPU, with Redis and without.

A thousand editors, open loop, 500 requests/s, on two servers with the scripted engine in turn. Both have the completion
cache; one has Redis beside it: announcements, level 2 of the cache, and leased limits. The best of all turns counts,
because other work on the machine can only add CPU time.
"""

from rich.console import Console

from loadtest.bench.replicas.options import Figures, Options
from loadtest.bench.replicas.redis_process import RedisProcess, shared_by
from loadtest.bench.runner.figures import rounded
from loadtest.bench.runner.front_end import SERVES_LATE, editors, server_turn
from loadtest.bench.runner.server import ServerProcess

_SESSIONS = 1000
_REQUESTS_PER_S = 500.0
_SETTINGS = (*SERVES_LATE, "admission.trust_user_names=true", "cache.enabled=true")


def measure(options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    scenario = editors(_SESSIONS, _REQUESTS_PER_S, options.seconds, seed=0)
    settings = (*_SETTINGS, *options.overrides)
    with (
        RedisProcess() as redis,
        ServerProcess(options.config, settings, has_metrics=True) as alone,
        ServerProcess(options.config, (*settings, *shared_by(redis.address, "rate")), has_metrics=True) as shared,
    ):
        turns = [
            [server_turn(each, scenario, console).cpu_ms for each in (alone, shared)] for _ in range(options.rounds)
        ]
    alone_ms, shared_ms = (min(each) for each in zip(*turns, strict=True))
    return {
        "front_end_cpu_ms": rounded(alone_ms),
        "front_end_cpu_ms_with_redis": rounded(shared_ms),
        "front_end_rate_ratio_with_redis": rounded(alone_ms / shared_ms),
    }
