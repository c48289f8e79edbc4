"""Part `routing`: what it is worth that a user's requests reach one replica.

Typing users, open loop, at equal load on three sites in turn: three replicas by the shipped hash, the same in rotation,
and one replica with three times the slots and the KV cache. The engine is scripted: it has a prefix cache of a limited
size, and computes 12,500 prompt tokens/s. Each turn has new users; its first part fills the caches and does not count.
Then: which users move when one of four replicas is killed, and how even their streams are before.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import psutil
from rich.console import Console

from loadtest.bench.replicas.envoy import Envoy, adapted, cluster_of, load_shipped
from loadtest.bench.replicas.servers import Figures, Options, scripted_replicas
from loadtest.bench.replicas.users import NamedUsers, OpenStream, busiest_over_mean, names_of
from loadtest.bench.runner.figures import mean, ratio
from loadtest.bench.runner.front_end import cpu_s
from loadtest.bench.runner.schedule import rotated
from loadtest.bench.runner.server import SERVES_ALL, ServerProcess
from loadtest.driving.run import RunProgress, run_scenario
from loadtest.processes.meter import read_counter
from loadtest.report.figures import MAX_LAG_MS, figures
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
_REQUESTS = "requests/"

_USERS = [f"user-{number}" for number in range(1024)]  # 1.25 * 1024 / 4 is a whole number
_HASHES: Mapping[str, Mapping[str, object]] = {
    "maglev": {"lb_policy": "MAGLEV"},
    "ring_hash_65536": {"lb_policy": "RING_HASH", "ring_hash_lb_config": {"minimum_ring_size": 65_536}},
    "ring_hash_1024": {"lb_policy": "RING_HASH", "ring_hash_lb_config": {"minimum_ring_size": 1024}},
}
_GONE_S = 20.0
_QUIET_S = 0.05


@dataclass(frozen=True, slots=True)
class Site:
    """Replicas behind an Envoy."""

    name: str
    replicas: Sequence[ServerProcess]
    envoy: Envoy

    def read(self) -> dict[str, float]:
        """Return counters: tokens by kind, requests by replica, and CPU seconds of all processes.

        These are the servers, Envoy, this process and its workers.

        Raises:
            MetricsError: a server does not show its metrics.

        """
        found = {f"{_REQUESTS}{replica}": float(num) for replica, num in self.envoy.requests().items()}
        urls = [f"http://{each.ready['metrics_address']}/metrics" for each in self.replicas]
        for kind in ("prompt", "cached_prompt"):
            found[kind] = sum(read_counter(url, ("completion_tokens_total",), {"kind": kind}) for url in urls)
        pids = [*(each.pid for each in self.replicas), self.envoy.pid]
        found["cpu_s"] = sum(cpu_s(psutil.Process(pid)) for pid in pids) + _own_cpu_s()
        return found


def measure(options: Options, console: Console) -> Figures:
    """Measure; see the module."""
    with ExitStack() as stack:
        sites = [_start(stack, name, options, console) for name in (HASH, ROUND_ROBIN, SINGLE)]
        turns: dict[str, list[dict[str, float]]] = {site.name: [] for site in sites}
        for number in range(options.rounds):
            scenario = _scenario(options, number)
            for site in rotated(sites, number):
                turn = _turn(site, scenario)
                turns[site.name].append(turn)
                _say(console, number, site, turn)
        moves = _measure_moves([*sites[0].replicas, sites[1].replicas[0]], console)
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
        cluster = cluster_of(document)
        cluster["lb_policy"] = "ROUND_ROBIN"
        del cluster["common_lb_config"]["consistent_hashing_lb_config"]
    return Site(name, replicas, stack.enter_context(Envoy.running(document, num)))


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


def _turn(site: Site, scenario: Scenario) -> dict[str, float]:
    """Return what one turn of a site measured after its first part; latencies are those of the whole turn.

    `hit_share` is of the prompt tokens of requests that the engine gave a token for.
    """
    warm_s = _WARM_SHARE * scenario.duration_s
    readings: list[tuple[float, dict[str, float]]] = []

    def watch(progress: RunProgress) -> None:
        if not readings and progress.is_running and progress.elapsed_s >= warm_s:
            readings.append((progress.elapsed_s, site.read()))

    # A call for each request, on connections that all users share.
    spec = parse_target(f"{site.name}=grpc+complete://{site.envoy.address}?connections=2")
    stats = run_scenario(scenario, [spec], workers=1, progress=watch).stats_by_target[spec.name]
    # The last reading is that of the end; the children of this process have ended by then, and count as its own.
    begun_s, before = readings[0]
    grown = {name: value - before[name] for name, value in site.read().items()}
    requests = [value for name, value in grown.items() if name.startswith(_REQUESTS)]
    return figures(stats, scenario.criteria) | {
        "seen_per_s": _seen_per_s(stats, begun_s),
        "hit_share": grown["cached_prompt"] / max(1.0, grown["prompt"]),
        "busiest_over_mean": max(requests) * len(requests) / max(1.0, sum(requests)),
        "cpu_cores": grown["cpu_s"] / max(1e-9, scenario.duration_s - begun_s),
    }


def _seen_per_s(stats: RunStats, from_s: float) -> float:
    """Return the seen completions per second of the slices after a time of the run."""
    first = int(from_s / stats.slice_s) + 1
    slices = stats.slices[first:]
    return sum(each.counters["seen"] for each in slices) / max(1e-9, stats.duration_s - first * stats.slice_s)


def _own_cpu_s() -> float:
    """Return the CPU seconds of this process, of its children that run and of those that have ended."""
    own = psutil.Process()
    workers = [each for each in own.children() if "multiprocessing" in " ".join(each.cmdline())]
    ended = own.cpu_times()
    return sum(map(cpu_s, [own, *workers])) + float(ended.children_user + ended.children_system)


def _say(console: Console, number: int, site: Site, turn: dict[str, float]) -> None:
    console.print(
        f"round {number + 1} {site.name:<12} seen {turn['seen_per_s']:5.1f}/s  hits {turn['hit_share']:.1%}  "
        f"ttft p50 {turn['ttft_ms_p50']:.0f} p99 {turn['ttft_ms_p99']:.0f} ms  "
        f"busiest {turn['busiest_over_mean']:.2f}  cpu {turn['cpu_cores']:.2f}  lag p99 {turn['lag_ms_p99']:.1f} ms"
    )
    if turn["lag_ms_p99"] > MAX_LAG_MS:
        console.print(f"  the generator was late: more than {MAX_LAG_MS:g} ms", style="red")


def _figures(turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    def values(name: str, figure: str) -> list[float]:
        return [turn[figure] for turn in turns[name]]

    found: dict[str, Any] = {}
    for other in (ROUND_ROBIN, SINGLE):
        found[f"seen_ratio_hash_to_{other}"] = ratio(values(HASH, "seen_per_s"), values(other, "seen_per_s"))
    for name in turns:
        found[f"seen_per_s_{name}"] = mean(values(name, "seen_per_s"))
        found[f"prefix_hit_share_{name}"] = mean(values(name, "hit_share"))
        found[f"ttft_p50_ms_{name}"] = mean(values(name, "ttft_ms_p50"))
        found[f"ttft_p99_ms_{name}"] = mean(values(name, "ttft_ms_p99"))
        found[f"cpu_cores_{name}"] = mean(values(name, "cpu_cores"))
    found["busiest_over_mean_requests"] = mean(values(HASH, "busiest_over_mean"))
    found["lag_p99_ms"] = max(lag_ms for name in turns for lag_ms in values(name, "lag_ms_p99"))
    return found


def _measure_moves(replicas: Sequence[ServerProcess], console: Console) -> dict[str, Any]:
    """Return the figures. The last replica is killed.

    Raises:
        StartError: Envoy did not start.
        EnvoyMissingError: it is not installed.

    """
    addresses: list[str] = [each.ready["address"] for each in replicas]
    found = _compare_hashes(addresses, console)
    document = adapted(load_shipped(), addresses)
    with Envoy.running(document, len(replicas)) as envoy:
        console.print(f"killing one of {len(replicas)} replicas, {len(_USERS)} users with a stream each", style="dim")
        return found | asyncio.run(_kill_one(envoy, replicas[-1], len(replicas)))


def _compare_hashes(addresses: Sequence[str], console: Console) -> dict[str, Any]:
    """Return how even each hash of Envoy is, and the users of other replicas that it moves when one is removed."""
    figures: dict[str, Any] = {}
    for name, cluster in _HASHES.items():
        console.print(f"keys by {name.replace('_', ' ')}", style="dim")
        keys = [_keys(addresses[:num], cluster) for num in (len(addresses), len(addresses) - 1)]
        moved = [user for user in _USERS if keys[0][user] != keys[1][user]]
        figures[f"{name}_busiest_over_mean"] = round(busiest_over_mean(keys[0], len(addresses)), 4)
        figures[f"{name}_moved_share"] = _share(len(moved))
        figures[f"{name}_moved_of_others_share"] = _share(sum(keys[0][user] != addresses[-1] for user in moved))
    return figures


def _keys(addresses: Sequence[str], cluster: Mapping[str, object]) -> dict[str, str]:
    """Return each user's replica behind an Envoy with other settings of the cluster."""

    async def ask(address: str) -> dict[str, str]:
        async with NamedUsers(address) as users:
            return await _replicas_of(users)

    with Envoy.running(adapted(load_shipped(), addresses, cluster), len(addresses)) as envoy:
        return asyncio.run(ask(envoy.address))


async def _kill_one(envoy: Envoy, lost: ServerProcess, num: int) -> dict[str, Any]:
    address: str = lost.ready["address"]
    async with NamedUsers(envoy.address) as users:
        own = await _replicas_of(users)
        streams = await users.open_streams(_USERS)
        before = {user: stream.replica for user, stream in streams.items()}
        os.kill(lost.pid, signal.SIGKILL)
        gone = [user for user in _USERS if before[user] == address]
        for user in gone:
            await asyncio.wait_for(streams[user].call.code(), _GONE_S)
        again: dict[str, OpenStream] = await users.open_streams(gone)
        after = {user: stream.replica for user, stream in (streams | again).items()}
        for stream in users.streams:
            stream.call.cancel()
        while sum(envoy.open_requests().values()):  # noqa: ASYNC110 - Envoy can only be polled
            await asyncio.sleep(_QUIET_S)
        moved = [user for user, replica in (await _replicas_of(users)).items() if replica != own[user]]
    return {
        "busiest_over_mean": round(busiest_over_mean(before, num), 4),
        "busiest_over_mean_after_kill": round(busiest_over_mean(after, num - 1), 4),
        "displaced_by_bound_share": _share(sum(own[user] != before[user] for user in _USERS)),
        "moved_share_after_kill": _share(sum(before[user] != after[user] for user in _USERS)),
        "moved_keys_share_after_kill": _share(len(moved)),
        "moved_keys_of_others_share": _share(sum(own[user] != address for user in moved)),
    }


async def _replicas_of(users: NamedUsers) -> dict[str, str]:
    """Return each user's replica, by one call after another, so that the bound moves nobody."""
    return {user: await users.complete(names_of(user)) for user in _USERS}


def _share(num: int) -> float:
    return round(num / len(_USERS), 4)
