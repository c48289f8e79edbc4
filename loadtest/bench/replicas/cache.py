"""Part `cache`: how many requests the completion cache answers, and what users see of it.

Typing users, open loop, on servers with the real engine in turn: without the cache, with level 1, with level 2 alone,
and with both on two servers. Level 2 alone finds only what Redis keeps, as a user does whose requests reach another
replica each time. The two servers have the default settings of the cache, and half way through a turn all users move
from the first to the second: a relay closes their connections, and their editors open them again. The editors keep no
completions of their own, as many plugins; the trace with those of the load tester is a second workload. An engine that
is instant shows nothing of level 2: an answer of Redis is not used once the request has had output.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from loadtest.bench.replicas.servers import Figures, Options, RedisProcess, shared_by
from loadtest.bench.runner.figures import mean, ratio
from loadtest.bench.runner.relay import Relay
from loadtest.bench.runner.schedule import rotated
from loadtest.bench.runner.server import ServerProcess
from loadtest.driving.run import RunProgress, run_scenario
from loadtest.report.figures import figures
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

OFF, LOCAL, SHARED, BOTH = "off", "l1", "l2", "l1_l2"
TYPED, OWN_CACHE = "typed", "editors_with_cache"
_EDITORS = 30
_OWN_ENTRIES = 8
_TRUSTED = "admission.trust_user_names=true"
_ON = "cache.enabled=true"


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


def measure(options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    turns: dict[str, dict[str, list[dict[str, float]]]] = {}
    with ExitStack() as stack:
        groups = _start_all(stack, options, console)
        for number in range(options.rounds):
            for workload, scenario in _scenarios(options, number).items():
                for name in rotated(list(groups), number):
                    turn = _turn(groups[name], f"{name}-{number}", scenario)
                    turns.setdefault(workload, {}).setdefault(name, []).append(turn)
                    console.print(
                        f"round {number + 1} {workload:<20} {name:<5} seen {turn['seen_per_s']:5.2f}/s  "
                        f"l1 {turn['local_hit_share']:.1%}  l2 {turn['shared_hit_share']:.1%}  "
                        f"ttft p99 {turn['ttft_ms_p99']:.0f} ms",
                        soft_wrap=True,
                    )
    found: dict[str, Any] = {}
    for workload, of_groups in turns.items():
        found |= _figures(of_groups, "" if workload == TYPED else f"_{workload}")
    return found


def _start_all(stack: ExitStack, options: Options, console: Console) -> dict[str, ServerGroup]:
    redis = stack.enter_context(RedisProcess())

    def start(name: str, *settings: str) -> ServerProcess:
        console.print(f"starting the server {name}", style="dim")
        server = stack.enter_context(ServerProcess(options.config, (_TRUSTED, *settings, *options.overrides), name))
        server.process.pause()
        return server

    alone = {
        OFF: start(OFF, "cache.enabled=false"),
        LOCAL: start(LOCAL, _ON, "cache.shared=false"),
        SHARED: start(SHARED, _ON, "cache.local_bytes=0", "cache.look_up=always", *shared_by(redis.address, SHARED)),
    }
    # A prefix of their own: they don't find the completions of the other server.
    both = [start(name, _ON, "redis.key_prefix=both", *shared_by(redis.address, name)) for name in ("first", "second")]
    relay = stack.enter_context(Relay(both[0].ready["address"]))
    return {name: ServerGroup([server]) for name, server in alone.items()} | {BOTH: ServerGroup(both, relay)}


def _scenarios(options: Options, number: int) -> dict[str, Scenario]:
    """Return the traffic of a round by workload."""
    found = {}
    for workload, cache_entries in ((TYPED, 0), (OWN_CACHE, _OWN_ENTRIES)):
        tree = Scenario.load("steady").model_dump()
        tree |= {"sessions": _EDITORS, "duration_s": options.seconds, "seed": f"{options.seed}/cache/{number}"}
        tree["documents"] |= {"prefix_chars": 400, "suffix_chars": 100}
        tree["editor"]["cache_entries"] = cache_entries
        found[workload] = Scenario.of(tree)
    return found


def _turn(group: ServerGroup, name: str, scenario: Scenario) -> dict[str, float]:
    spec = parse_target(f"{name}=grpc://{group.address}")
    has_moved = False

    def move_half_way(progress: RunProgress) -> None:
        nonlocal has_moved
        if progress.is_running and progress.elapsed_s >= scenario.duration_s / 2 and not has_moved:
            has_moved = True
            group.move_to(group.servers[-1])

    with group.awake():
        group.move_to(group.servers[0])
        result = run_scenario(scenario, [spec], workers=1, progress=move_half_way)
    return figures(result.stats_by_target[name], scenario.criteria)


def _figures(turns: dict[str, list[dict[str, float]]], suffix: str) -> dict[str, Any]:
    """Return the figures of a workload from the turns of each group."""
    found: dict[str, Any] = {}
    for name, group, level in (
        ("l1", LOCAL, "local"),
        ("l2", SHARED, "shared"),
        ("l1_of_l1_l2", BOTH, "local"),
        ("l2_of_l1_l2", BOTH, "shared"),
    ):
        shares = [turn[f"{level}_hit_share"] for turn in turns[group]]
        found[f"hit_share_{name}{suffix}"] = mean(shares)
    seen = {name: [turn["seen_per_s"] for turn in own] for name, own in turns.items()}
    for name, group in (("cache_on", LOCAL), ("l2_alone", SHARED), ("l1_l2", BOTH)):
        found[f"seen_ratio_{name}{suffix}"] = ratio(seen[group], seen[OFF])
    return found
