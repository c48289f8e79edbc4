"""Part `routing`: what it is worth that a user's requests reach one replica.

Typing users, open loop, at equal load on three sites in turn: three replicas by the shipped hash, the same in rotation,
and one replica with three times the slots and the KV cache. The engine is scripted: it has a prefix cache of a limited
size, and computes 12,500 prompt tokens/s. Each turn has new users; its first part fills the caches and does not count.
Then: which users move when one of four replicas is killed.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import psutil
from rich.console import Console

from loadtest.bench.replicas.envoy import Document, Envoy, adapted, cluster_of, load_shipped
from loadtest.bench.replicas.moves import measure_moves
from loadtest.bench.replicas.options import Figures, Options
from loadtest.bench.replicas.servers import scripted_replicas
from loadtest.bench.runner.figures import mean, named, ratio, rounded
from loadtest.bench.runner.front_end import cpu_s
from loadtest.bench.runner.schedule import rotated
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess
from loadtest.driving.run import RunProgress, run_scenario
from loadtest.processes.meter import read_counter
from loadtest.report.figures import MAX_LAG_MS, Sums
from loadtest.stats import RunStats
from loadtest.targets import parse_target
from loadtest.traffic.scenario import Scenario

HASH, ROUND_ROBIN, SINGLE = "hash", "round_robin", "single"

_NUM_REPLICAS = 3
_SLOTS = 16
_MAX_MODEL_TOKENS = 4096
_WARM_SHARE = 0.3
"""Part of a turn that does not count."""
_PREFIX_CHARS, _SUFFIX_CHARS = 6000, 1000


@dataclass(frozen=True, slots=True)
class SiteCounters:
    """Counters of a site at a time."""

    prompt_tokens: float
    cached_prompt_tokens: float
    requests: Mapping[str, int]
    """By replica."""
    cpu_s: float
    """CPU seconds of all servers, of Envoy, of this process and of its workers."""


@dataclass(frozen=True, slots=True)
class Site:
    """Replicas behind an Envoy."""

    name: str
    replicas: Sequence[ServerProcess]
    envoy: Envoy

    @property
    def target(self) -> str:
        """The target of the load tester: a call for each request, on connections that all users share."""
        return f"{self.name}=grpc+complete://{self.envoy.address}?connections=2"

    def read(self) -> SiteCounters:
        """Read the counters.

        Raises:
            MetricsError: a server does not show them.

        """
        tokens = {"prompt": 0.0, "cached_prompt": 0.0}
        for replica in self.replicas:
            url = f"http://{replica.ready['metrics_address']}/metrics"
            for kind in tokens:
                tokens[kind] += read_counter(url, ("completion_tokens_total",), {"kind": kind})
        pids = [*(each.pid for each in self.replicas), self.envoy.pid]
        used_s = sum(cpu_s(psutil.Process(pid)) for pid in pids)
        return SiteCounters(tokens["prompt"], tokens["cached_prompt"], self.envoy.requests(), used_s + _own_cpu_s())


@dataclass(frozen=True, slots=True)
class SiteTurn:
    """What one turn of a site measured, after its first part."""

    seen_per_s: float
    hit_share: float
    """Of the prompt tokens of requests that the engine gave a token for, those in the prefix cache."""
    busiest_over_mean: float
    """Requests of the busiest replica over the mean."""
    cpu_cores: float
    """Cores used by Envoy, the servers and the load tester."""
    ttft_p50_ms: float
    ttft_p99_ms: float
    lag_p99_ms: float


def measure(options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    with ExitStack() as stack:
        sites = [_start(stack, name, options, console) for name in (HASH, ROUND_ROBIN, SINGLE)]
        turns: dict[str, list[SiteTurn]] = {site.name: [] for site in sites}
        for number in range(options.rounds):
            scenario = _scenario(options, number)
            for site in rotated(sites, number):
                turn = _turn(site, scenario)
                turns[site.name].append(turn)
                _say(console, number, site, turn)
        moves = measure_moves([*sites[0].replicas, sites[1].replicas[0]], console)
    return _figures(turns) | moves


def _start(stack: ExitStack, name: str, options: Options, console: Console) -> Site:
    """Start a site, which is idle until its turn."""
    console.print(f"starting {name.replace('_', ' ')}", style="dim")
    num = 1 if name == SINGLE else _NUM_REPLICAS
    share = _NUM_REPLICAS // num
    overrides = (
        *SERVES_ALL,
        "engine.scripted_times=small_model_on_two_cores",
        f"engine.max_model_len={_MAX_MODEL_TOKENS}",
        f"engine.max_num_seqs={_SLOTS * share}",
        f"scheduling.max_slots={_SLOTS * share}",
        f"engine.scripted_kv_blocks={options.kv_blocks * share}",
        *options.overrides,
    )
    replicas = stack.enter_context(scripted_replicas(num, overrides, options.config, name))
    document = adapted(load_shipped(), [each.ready["address"] for each in replicas])
    if name == ROUND_ROBIN:
        _rotate(document)
    return Site(name, replicas, stack.enter_context(Envoy.running(document, num)))


def _rotate(document: Document) -> None:
    cluster = cluster_of(document)
    cluster["lb_policy"] = "ROUND_ROBIN"
    del cluster["common_lb_config"]["consistent_hashing_lb_config"]


def _scenario(options: Options, number: int) -> Scenario:
    """Return the traffic of a round: users who type in short spells, so that many share the caches."""
    scenario = Scenario.load("steady")
    per_user = scenario.session_requests_per_s
    tree = scenario.model_dump() | {
        "sessions": options.users,
        "duration_s": options.seconds,
        "seed": f"{options.seed}/{number}",
    }
    tree["typing"]["away_share"] = max(0.0, 1 - options.requests_per_s / options.users / per_user)
    tree["typing"]["away_median_s"] = 3.0
    tree["documents"] |= {"prefix_chars": _PREFIX_CHARS, "suffix_chars": _SUFFIX_CHARS}
    return Scenario.of(tree)


def _turn(site: Site, scenario: Scenario) -> SiteTurn:
    warm_s = _WARM_SHARE * scenario.duration_s
    readings: list[tuple[float, SiteCounters]] = []

    def watch(progress: RunProgress) -> None:
        if not readings and progress.is_running and progress.elapsed_s >= warm_s:
            readings.append((progress.elapsed_s, site.read()))

    spec = parse_target(site.target)
    stats = run_scenario(scenario, [spec], workers=1, progress=watch).stats_by_target[spec.name]
    # The last reading is that of the end; the children of this process have ended by then, and count as its own.
    (begun_s, before), after = readings[0], site.read()
    requests = [after.requests[each] - before.requests[each] for each in after.requests]
    prompt_tokens = after.prompt_tokens - before.prompt_tokens
    total = Sums.of_total(stats)
    return SiteTurn(
        seen_per_s=_seen_per_s(stats, begun_s),
        hit_share=(after.cached_prompt_tokens - before.cached_prompt_tokens) / max(1.0, prompt_tokens),
        busiest_over_mean=max(requests) * len(requests) / max(1, sum(requests)),
        cpu_cores=(after.cpu_s - before.cpu_s) / max(1e-9, scenario.duration_s - begun_s),
        ttft_p50_ms=float(total.percentile_ms("ttft", 50)[0]),
        ttft_p99_ms=float(total.percentile_ms("ttft", 99)[0]),
        lag_p99_ms=float(total.percentile_ms("lag", 99)[0]),
    )


def _seen_per_s(stats: RunStats, from_s: float) -> float:
    """Return the seen completions per second of the slices after a time of the run."""
    first = int(from_s / stats.slice_s) + 1
    slices = stats.slices[first:]
    return sum(each.counters["seen"] for each in slices) / max(1e-9, stats.duration_s - first * stats.slice_s)


def _own_cpu_s() -> float:
    """Return the CPU seconds of this process, of its children that run and of those that have ended."""
    own = psutil.Process()
    times = own.cpu_times()
    workers = [each.cpu_times() for each in own.children() if "multiprocessing" in " ".join(each.cmdline())]
    running_s = sum(each.user + each.system for each in workers)
    return float(times.user + times.system + times.children_user + times.children_system + running_s)


def _say(console: Console, number: int, site: Site, turn: SiteTurn) -> None:
    console.print(
        f"round {number + 1} {site.name:<12} seen {turn.seen_per_s:5.1f}/s  hits {turn.hit_share:.1%}  "
        f"ttft p50 {turn.ttft_p50_ms:.0f} p99 {turn.ttft_p99_ms:.0f} ms  busiest {turn.busiest_over_mean:.2f}  "
        f"cpu {turn.cpu_cores:.2f}  lag p99 {turn.lag_p99_ms:.1f} ms"
    )
    if turn.lag_p99_ms > MAX_LAG_MS:
        console.print(f"  the generator was late: more than {MAX_LAG_MS:g} ms", style="red")


def _figures(turns: dict[str, list[SiteTurn]]) -> dict[str, float | None]:
    seen = {name: [each.seen_per_s for each in found] for name, found in turns.items()}
    found: dict[str, float | None] = {}
    for other in (ROUND_ROBIN, SINGLE):
        found |= named(f"seen_ratio_hash_to_{other}", ratio(seen[HASH], seen[other]))
    for name, measured in turns.items():
        found[f"seen_per_s_{name}"] = rounded(mean(seen[name]))
        found[f"prefix_hit_share_{name}"] = rounded(mean([each.hit_share for each in measured]), 4)
        found[f"ttft_p50_ms_{name}"] = rounded(mean([each.ttft_p50_ms for each in measured]), 1)
        found[f"ttft_p99_ms_{name}"] = rounded(mean([each.ttft_p99_ms for each in measured]), 1)
        found[f"cpu_cores_{name}"] = rounded(mean([each.cpu_cores for each in measured]))
    found["busiest_over_mean_requests"] = rounded(mean([each.busiest_over_mean for each in turns[HASH]]))
    found["lag_p99_ms"] = rounded(max(each.lag_p99_ms for measured in turns.values() for each in measured), 1)
    return found
