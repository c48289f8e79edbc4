"""The three ways to serve the same load: three replicas by hash, three in rotation, one of three times the size."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from loadtest.bench.common.server import SERVES_ALL, ServerProcess
from loadtest.bench.replicas.envoy import Document, Envoy, adapted, cluster_of, load_shipped
from loadtest.bench.replicas.options import Options
from loadtest.bench.replicas.servers import scripted_replicas
from loadtest.processes.counters import read_counter

HASH, ROUND_ROBIN, SINGLE = "hash", "round_robin", "single"
WAYS = (HASH, ROUND_ROBIN, SINGLE)

_NUM_REPLICAS = 3
_SLOTS = 16
_MAX_MODEL_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class SiteCounters:
    """Counters of a site at a time."""

    prompt_tokens: float
    cached_prompt_tokens: float
    requests: Mapping[str, int]
    """By replica."""
    cpu_s: float
    """CPU seconds of all servers and of Envoy."""


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
        cpu_s = sum(map(_cpu_s, (*(each.pid for each in self.replicas), self.envoy.pid)))
        return SiteCounters(tokens["prompt"], tokens["cached_prompt"], self.envoy.requests(), cpu_s)


@contextmanager
def running_sites(options: Options) -> Iterator[list[Site]]:
    """Run all sites; those whose turn it is not are idle.

    Raises:
        StartError: a server or an Envoy did not start.
        EnvoyMissingError: Envoy is not installed.

    """
    with ExitStack() as stack:
        yield [_start(stack, name, options) for name in WAYS]


def _start(stack: ExitStack, name: str, options: Options) -> Site:
    options.console.print(f"starting {name.replace('_', ' ')}", style="dim")
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
    addresses = [each.ready["address"] for each in replicas]
    document = adapted(load_shipped(), addresses)
    if name == ROUND_ROBIN:
        _rotate(document)
    return Site(name, replicas, stack.enter_context(Envoy.running(document, num)))


def _rotate(document: Document) -> None:
    cluster: dict[str, Any] = cluster_of(document)
    cluster["lb_policy"] = "ROUND_ROBIN"
    del cluster["common_lb_config"]["consistent_hashing_lb_config"]


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
