"""Fleets of servers over hours or days as series for promtool: what Prometheus would have scraped of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

STEP_MINUTES = 2.5
"""Between two samples. A rate over five minutes needs two of them, and Prometheus looks five minutes back."""
_STEADY_PER_SERVER_PER_S = 10.0
_NEVER = float("inf")

DEPLOYMENT = 'kube_deployment_spec_replicas{namespace="completion",deployment="completion-server"}'
"""What the Deployment asks for, by kube-state-metrics."""
ROLLOUT = 'rollout_info_replicas_desired{namespace="completion",name="completion-server"}'
"""What the Rollout asks for, by Argo Rollouts."""

ByMinute = Callable[[float], float]
Values = list[float | None]
"""One for each step; None is no sample."""


@dataclass(frozen=True)
class Server:
    """A server's life, in minutes."""

    name: str
    begins: float = 0
    loads_for: float = 0
    """From its beginning until its engine is ready."""
    ends: float = _NEVER
    """Its pod is gone, and its targets and series with it."""
    late_from: float = _NEVER
    """It is late with everything."""

    def exists(self, minute: float) -> bool:
        return self.begins <= minute < self.ends

    def is_ready(self, minute: float) -> bool:
        return self.exists(minute) and minute >= self.begins + self.loads_for


def servers(num: int) -> list[Server]:
    """Return servers that are ready from the start."""
    return [Server(f"pod-{number}") for number in range(num)]


@dataclass(frozen=True)
class Fleet:
    """The servers of a region, their front door and what else is scraped there."""

    servers: Sequence[Server]
    minutes: float
    assumed: int
    """What the servers are told of their number."""
    wanted: ByMinute | None = None
    """The replicas of the Deployment; None without kube-state-metrics."""
    traffic: ByMinute | None = None
    """Requests a second of the region; None: so much for each wanted server, all the time."""
    proxies: ByMinute | None = lambda _minute: 2
    """Envoys that are up, and proxies of the gateway; None where they are not scraped."""
    redis_is_away: Callable[[float], bool] = lambda _minute: False
    more: Mapping[str, ByMinute] = field(default_factory=dict)
    """Further series."""

    def series(self) -> dict[str, str]:
        """Return the values in promtool's notation, by series."""
        times = [step * STEP_MINUTES for step in range(int(self.minutes / STEP_MINUTES) + 1)]
        return {name: encoded(values) for name, values in self._series(times)}

    def _series(self, times: Sequence[float]) -> Iterator[tuple[str, Values]]:
        for server in self.servers:
            for name, values in self._of_server(server, times):
                yield name, [value if server.exists(at) else None for at, value in zip(times, values, strict=True)]
        for job in ("completion-edge", "completion/completion-gateway") if self.proxies is not None else ():
            for number in range(3):
                yield from self._of_proxy(f'job="{job}",instance="proxy-{number}"', number, times)
        around = _AROUND | dict(self.more) | ({DEPLOYMENT: self.wanted} if self.wanted else {})
        for name, read in around.items():
            yield name, [read(minute) for minute in times]

    def _of_server(self, server: Server, times: Sequence[float]) -> Iterator[tuple[str, Iterable[float]]]:
        own = f'region="us-east",instance="{server.name}"'
        in_time, late = self._counted(server, times)
        answered = [early + tardy for early, tardy in zip(in_time, late, strict=True)]
        yield f'up{{job="completion-server",instance="{server.name}"}}', [1.0] * len(times)
        yield f"completion_build_info{{{own}}}", [1.0] * len(times)
        yield f"completion_assumed_replicas{{{own}}}", [float(self.assumed)] * len(times)
        yield f"completion_engine_ready{{{own}}}", [float(server.is_ready(at)) for at in times]
        yield f'completion_slo_requests_total{{{own},result="in_time"}}', in_time
        yield f'completion_slo_requests_total{{{own},result="late"}}', late
        yield f'completion_requests_total{{{own},outcome="stop"}}', answered
        if server not in {self.servers[0], self.servers[-1]}:
            return  # what follows says nothing of a fleet's size, and would only take time
        yield f"completion_engine_restarts_total{{{own}}}", [0.0] * len(times)
        yield f"completion_redis_available{{{own}}}", [float(not self.redis_is_away(at)) for at in times]
        for kind, num in (("prompt", 1000.0), ("cached_prompt", 950.0), ("drafted", 50.0), ("accepted_draft", 40.0)):
            yield f'completion_tokens_total{{{own},kind="{kind}"}}', [num * each for each in answered]

    def _counted(self, server: Server, times: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return the server's requests that were in time and those that were late."""
        # Whole numbers, which promtool adds up without an error; servers count at different moments.
        num_in_time = num_late = self.servers.index(server) / len(self.servers)
        in_time, late = [0.0], [0.0]
        for minute in times[1:]:
            per_s = self.traffic(minute) if self.traffic else _STEADY_PER_SERVER_PER_S * self.assumed
            num_ready = sum(each.is_ready(minute) for each in self.servers)
            num = per_s / num_ready * STEP_MINUTES * 60 if server.is_ready(minute) else 0.0
            share_late = 1.0 if minute > server.late_from else 0.01
            num_late += num * share_late
            num_in_time += num * (1 - share_late)
            in_time.append(math.floor(num_in_time))
            late.append(math.floor(num_late))
        return in_time, late

    def _of_proxy(self, own: str, number: int, times: Sequence[float]) -> Iterator[tuple[str, Values]]:
        """Yield the series of a proxy. The third one is there while a rollout needs it."""
        assert self.proxies is not None
        is_up = [number < self.proxies(minute) for minute in times]
        if number >= 2 and not any(is_up):
            return
        yield f"up{{{own}}}", [float(up) if up or number < 2 else None for up in is_up]
        for name, growth in (("rq_total", 1000.0), ("cx_none_healthy", 0.0), ("rq_pending_overflow", 0.0)):
            values = [step * growth if up else None for step, up in enumerate(is_up)]
            yield f'envoy_cluster_upstream_{name}{{{own},envoy_cluster_name="replicas"}}', values
        yield f"envoy_server_days_until_first_cert_expiring{{{own}}}", [60.0 if up else None for up in is_up]


def _steady(value: float) -> ByMinute:
    return lambda _minute: value


_AROUND: dict[str, ByMinute] = {
    'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="node-1"}': _steady(65),
    'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="node-1"}': _steady(0),
    'node_timex_offset_seconds{instance="node-1"}': _steady(0.0005),
    'node_timex_sync_status{instance="node-1"}': _steady(1),
    'redis_memory_used_bytes{namespace="completion",instance="redis-0"}': _steady(100e6),
    'redis_memory_max_bytes{namespace="completion",instance="redis-0"}': _steady(400e6),
    'redis_evicted_keys_total{namespace="completion",instance="redis-0"}': _steady(0),
    'certmanager_certificate_expiration_timestamp_seconds{namespace="completion",name="redis"}': _steady(6e6),
}


def encoded(values: Sequence[float | None]) -> str:
    """Return values in promtool's notation; None is no sample, and the first one the mark that a series has ended."""
    words: list[str] = []
    at = 0
    while at < len(values):
        first = values[at]
        if first is None:
            words.append("stale" if at and values[at - 1] is not None else "_")
            at += 1
            continue
        length, step = _line_at(values, at)
        words.append(f"{first:.10g}{step:+.10g}x{length - 1}")
        at += length
    return " ".join(words)


def _line_at(values: Sequence[float | None], at: int) -> tuple[int, float]:
    """Return how many values from `at` on grow by the same step, and the step."""
    line: float | None = None
    for number, (before, after) in enumerate(pairwise(islice(values, at, None))):
        step = None if before is None or after is None else after - before
        if step is None or (line is not None and step != line):
            return number + 1, line or 0.0
        line = step
    return len(values) - at, line or 0.0
