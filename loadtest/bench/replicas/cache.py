"""Part `cache`: how many requests the completion cache answers, and what users see of it.

Typing users, open loop, on servers with the real engine in turn: without the cache, with level 1, with level 2 alone,
and with both on two servers. Level 2 alone finds only what Redis keeps, as a user does whose requests reach another
replica each time. The two servers have the default settings of the cache, and half way through a turn all users move
from the first to the second: a relay closes their connections, and their editors open them again. The editors keep no
completions of their own, as many plugins; the trace with those of the load tester is a second workload. The same with
arrivals and lengths of a recorded trace, if one is given.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from rich.console import Console

from loadtest.bench.replicas.options import Figures, Options
from loadtest.bench.replicas.redis_process import RedisProcess, shared_by
from loadtest.bench.runner.figures import mean, named, ratio, rounded
from loadtest.bench.runner.relay import Relay
from loadtest.bench.runner.schedule import rotated
from loadtest.bench.runner.server import ServerProcess
from loadtest.driving.run import RunProgress, run_scenario
from loadtest.report.figures import Sums
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

OFF, LOCAL, SHARED, BOTH = "off", "l1", "l2", "l1_l2"
TYPED, OWN_CACHE, RECORDED = "typed", "editors_with_cache", "recorded"
_EDITORS = 30
_OWN_ENTRIES = 8
_RECORDED_CHARS, _TOKENS = 2000, 24
_TRUSTED = ("admission.trust_user_names=true",)


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """Servers that take turns with others."""

    servers: Sequence[ServerProcess]
    """Users move from the first to the last half way through a turn."""
    relay: Relay | None = None
    """Between users and servers, if there are several."""

    @property
    def address(self) -> str:
        """Where users call."""
        return str(self.relay.address if self.relay else self.servers[0].ready["address"])

    def move_to(self, server: ServerProcess) -> None:
        """Move the users to one of the servers; nothing happens if there is only one."""
        if self.relay is not None:
            self.relay.move_to(server.ready["address"], closes=True)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let the servers run, which are suspended at other times."""
        for server in self.servers:
            server.process.resume()
        try:
            yield
        finally:
            for server in self.servers:
                server.process.pause()


@dataclass(frozen=True, slots=True)
class CacheTurn:
    """What one turn of a server measured."""

    seen_per_s: float
    local_share: float
    """Of the requests sent, those that level 1 answered."""
    shared_share: float
    ttft_p99_ms: float


def measure(options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    turns: dict[tuple[str, str], list[CacheTurn]] = {}
    with ExitStack() as stack:
        redis = stack.enter_context(RedisProcess())
        ways = _start_all(stack, redis, options, console)
        for number in range(options.rounds):
            for workload, scenario in _scenarios(options, number).items():
                for name in rotated(list(ways), number):
                    turn = _turn(ways[name], name, scenario, number)
                    turns.setdefault((workload, name), []).append(turn)
                    console.print(
                        f"round {number + 1} {workload:<20} {name:<5} seen {turn.seen_per_s:5.2f}/s  "
                        f"l1 {turn.local_share:.1%}  l2 {turn.shared_share:.1%}  ttft p99 {turn.ttft_p99_ms:.0f} ms",
                        soft_wrap=True,
                    )
    return _figures(turns)


def _start_all(stack: ExitStack, redis: RedisProcess, options: Options, console: Console) -> dict[str, ServerGroup]:
    settings = {
        OFF: ("cache.enabled=false",),
        LOCAL: ("cache.enabled=true", "cache.shared=false"),
        SHARED: (
            "cache.enabled=true",
            "cache.local_bytes=0",
            "cache.look_up=always",
            *shared_by(redis.address, SHARED),
        ),
    }
    ways = {name: ServerGroup([_start(stack, name, each, options, console)]) for name, each in settings.items()}
    # A prefix of their own: they don't find the other's completions.
    replicas = {name: shared_by(redis.address, name) for name in ("first", "second")}
    common = ("cache.enabled=true", "redis.key_prefix=both")
    both = [_start(stack, name, (*common, *each), options, console) for name, each in replicas.items()]
    relay = stack.enter_context(Relay(both[0].ready["address"]))
    return {**ways, BOTH: ServerGroup(both, relay)}


def _start(stack: ExitStack, name: str, settings: Sequence[str], options: Options, console: Console) -> ServerProcess:
    console.print(f"starting the server {name}", style="dim")
    server = stack.enter_context(ServerProcess(options.config, (*_TRUSTED, *settings, *options.overrides), name))
    server.process.pause()
    return server


def _scenarios(options: Options, number: int) -> dict[str, Scenario]:
    found = {TYPED: _typed(options, number, cache_entries=0)}
    found[OWN_CACHE] = _typed(options, number, cache_entries=_OWN_ENTRIES)
    if options.recorded is not None:
        file = {"file": str(options.recorded), "max_prefix_chars": _RECORDED_CHARS, "max_tokens": _TOKENS}
        tree = {"name": RECORDED, "sessions": _EDITORS, "duration_s": options.seconds, "seed": str(number)}
        found[RECORDED] = Scenario.of(tree | {"recorded": file})
    return found


def _typed(options: Options, number: int, cache_entries: int) -> Scenario:
    tree = Scenario.load("steady").model_dump()
    tree |= {"sessions": _EDITORS, "duration_s": options.seconds, "seed": f"{options.seed}/cache/{number}"}
    tree["documents"] |= {"prefix_chars": 400, "suffix_chars": 100}
    tree["editor"]["cache_entries"] = cache_entries
    return Scenario.of(tree)


def _turn(way: ServerGroup, name: str, scenario: Scenario, number: int) -> CacheTurn:
    spec = parse_target(f"{name}-{number}=grpc://{way.address}")
    has_moved = False

    def move_half_way(progress: RunProgress) -> None:
        nonlocal has_moved
        if progress.is_running and progress.elapsed_s >= scenario.duration_s / 2 and not has_moved:
            has_moved = True
            way.move_to(way.servers[-1])

    with way.awake():
        way.move_to(way.servers[0])
        result = run_scenario(scenario, [spec], workers=1, progress=move_half_way)
    stats = result.stats_by_target[spec.name]
    counters = stats.total.counters
    sent = max(1, counters["sent"])
    return CacheTurn(
        seen_per_s=counters["seen"] / stats.duration_s,
        local_share=counters["cache/local"] / sent,
        shared_share=counters["cache/shared"] / sent,
        ttft_p99_ms=float(Sums.of_total(stats).percentile_ms("ttft", 99)[0]),
    )


def _figures(turns: dict[tuple[str, str], list[CacheTurn]]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for workload in dict.fromkeys(workload for workload, _name in turns):
        suffix = "" if workload == TYPED else f"_{workload}"
        off, local, shared, both = (turns[workload, name] for name in (OFF, LOCAL, SHARED, BOTH))
        found[f"hit_share_l1{suffix}"] = rounded(mean([turn.local_share for turn in local]), 4)
        found[f"hit_share_l2{suffix}"] = rounded(mean([turn.shared_share for turn in shared]), 4)
        found[f"hit_share_l1_of_l1_l2{suffix}"] = rounded(mean([turn.local_share for turn in both]), 4)
        found[f"hit_share_l2_of_l1_l2{suffix}"] = rounded(mean([turn.shared_share for turn in both]), 4)
        for name, on in (("cache_on", local), ("l2_alone", shared), ("l1_l2", both)):
            estimate = ratio([turn.seen_per_s for turn in on], [turn.seen_per_s for turn in off])
            found |= named(f"seen_ratio_{name}{suffix}", estimate)
    return found
