"""Fleets of servers over hours or days as series for promtool: what Prometheus would have scraped of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

STEP_MINUTES = 2.5
"""Between two samples. A rate over five minutes needs two of them, and Prometheus looks five minutes back."""
_REGION = 'region="us-east"'
_JOBS = ("completion-edge", "completion/completion-gateway")
_STEADY_PER_SERVER_PER_S = 10.0

DEPLOYMENT = 'kube_deployment_spec_replicas{namespace="completion",deployment="completion-server"}'
"""What the Deployment asks for, by kube-state-metrics."""
ROLLOUT = 'rollout_info_replicas_desired{namespace="completion",name="completion-server"}'
"""What the Rollout asks for, by Argo Rollouts."""

Traffic = Callable[[float], float]
"""Requests a second of the region, by minute."""


@dataclass(frozen=True)
class Server:
    """A server's life, in minutes."""

    name: str
    begins: float = 0
    loads_for: float = 0
    """From its beginning until its engine is ready."""
    ends: float = float("inf")
    """Its pod is gone, and its targets and series with it."""
    late_from: float = float("inf")
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
    wanted: Callable[[float], int] | None = None
    """The replicas of the Deployment, by minute; None without kube-state-metrics."""
    traffic: Traffic | None = None
    """None: so much for each wanted server, all the time."""
    proxies: Callable[[float], int] | None = lambda _minute: 2
    """Envoys that are up, and proxies of the gateway; None where they are not scraped."""
    redis_is_away: Callable[[float], bool] = lambda _minute: False
    more: Mapping[str, Callable[[float], float]] = field(default_factory=dict)
    """Further series."""

    def series(self) -> dict[str, str]:
        """Return the values in promtool's notation, by series."""
        times = [step * STEP_MINUTES for step in range(int(self.minutes / STEP_MINUTES) + 1)]
        return {name: encoded(values) for name, values in self._series(times)}

    def _series(self, times: Sequence[float]) -> Iterator[tuple[str, list[float | None]]]:
        for server in self.servers:
            yield from self._of_server(server, times)
        if self.wanted is not None:
            yield DEPLOYMENT, [float(self.wanted(minute)) for minute in times]
        if self.proxies is not None:
            for job in _JOBS:
                yield from self._of_proxies(job, times, self.proxies)
        for name, read in (_AROUND | dict(self.more)).items():
            yield name, [read(minute) for minute in times]

    def _of_server(self, server: Server, times: Sequence[float]) -> Iterator[tuple[str, list[float | None]]]:
        own = f'{_REGION},instance="{server.name}"'
        in_time, late = self._counted(server, times)

        def while_it_exists(values: Iterable[float]) -> list[float | None]:
            return [value if server.exists(at) else None for at, value in zip(times, values, strict=True)]

        def always(value: float) -> list[float | None]:
            return while_it_exists(value for _ in times)

        yield f'up{{job="completion-server",instance="{server.name}"}}', always(1)
        yield f"completion_build_info{{{own}}}", always(1)
        yield f"completion_assumed_replicas{{{own}}}", always(self.assumed)
        yield f"completion_engine_ready{{{own}}}", while_it_exists(float(server.is_ready(at)) for at in times)
        yield f'completion_slo_requests_total{{{own},result="in_time"}}', while_it_exists(in_time)
        yield f'completion_slo_requests_total{{{own},result="late"}}', while_it_exists(late)
        answered = [early + tardy for early, tardy in zip(in_time, late, strict=True)]
        yield f'completion_requests_total{{{own},outcome="stop"}}', while_it_exists(answered)
        if server not in {self.servers[0], self.servers[-1]}:
            return  # what follows says nothing of a fleet's size, and would only take time
        yield f"completion_engine_restarts_total{{{own}}}", always(0)
        reached = (float(not self.redis_is_away(at)) for at in times)
        yield f"completion_redis_available{{{own}}}", while_it_exists(reached)
        for kind, num in (("prompt", 1000.0), ("cached_prompt", 950.0), ("drafted", 50.0), ("accepted_draft", 40.0)):
            tokens = while_it_exists(num * each for each in answered)
            yield f'completion_tokens_total{{{own},kind="{kind}"}}', tokens

    def _counted(self, server: Server, times: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return the server's requests that were in time and those that were late."""
        # Whole numbers, which promtool adds up without an error; servers count at different moments.
        begin = self.servers.index(server) / len(self.servers)
        num_in_time, num_late = begin, begin
        in_time, late = [0.0], [0.0]
        for minute in times[1:]:
            num_ready = sum(each.is_ready(minute) for each in self.servers)
            num = self._per_s(minute) / num_ready * STEP_MINUTES * 60 if server.is_ready(minute) else 0.0
            share_late = 1.0 if minute > server.late_from else 0.01
            num_late += num * share_late
            num_in_time += num * (1 - share_late)
            in_time.append(math.floor(num_in_time))
            late.append(math.floor(num_late))
        return in_time, late

    def _per_s(self, minute: float) -> float:
        if self.traffic is not None:
            return self.traffic(minute)
        return _STEADY_PER_SERVER_PER_S * self.assumed

    def _of_proxies(
        self, job: str, times: Sequence[float], num_up: Callable[[float], int]
    ) -> Iterator[tuple[str, list[float | None]]]:
        for number in range(3):
            own = f'job="{job}",instance="proxy-{number}"'
            # The third one is there while a rollout needs it.
            is_known = [number < max(2, num_up(minute)) for minute in times]
            is_up = [number < num_up(minute) for minute in times]
            if not any(is_known):
                continue
            yield (
                f"up{{{own}}}",
                [float(up) if known else None for up, known in zip(is_up, is_known, strict=True)],
            )
            scraped = [step * 1000.0 if up else None for step, up in enumerate(is_up)]
            yield f'envoy_cluster_upstream_rq_total{{{own},envoy_cluster_name="replicas"}}', scraped
            for name in ("cx_none_healthy", "rq_pending_overflow"):
                zeros = [0.0 if up else None for up in is_up]
                yield f'envoy_cluster_upstream_{name}{{{own},envoy_cluster_name="replicas"}}', zeros
            yield f"envoy_server_days_until_first_cert_expiring{{{own}}}", [60.0 if up else None for up in is_up]


_AROUND: Mapping[str, Callable[[float], float]] = {
    'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="node-1"}': lambda _minute: 65,
    'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="node-1"}': lambda _minute: 0,
    'node_timex_offset_seconds{instance="node-1"}': lambda _minute: 0.0005,
    'node_timex_sync_status{instance="node-1"}': lambda _minute: 1,
    'redis_memory_used_bytes{namespace="completion",instance="redis-0"}': lambda _minute: 100e6,
    'redis_memory_max_bytes{namespace="completion",instance="redis-0"}': lambda _minute: 400e6,
    'redis_evicted_keys_total{namespace="completion",instance="redis-0"}': lambda _minute: 0,
    'certmanager_certificate_expiration_timestamp_seconds{namespace="completion",name="redis"}': lambda _minute: 6e6,
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
