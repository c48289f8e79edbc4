"""Measures the CPU time that traces add to the front end of a request, with a collector in a process of its own.

Passes without traces, and with none, 1% and all of the requests sampled, take turns. The time of the thread that
exports counts, until the last span is with the collector; imports, connecting and closing do not.
"""

import asyncio
import math
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection

import grpc
import numpy as np
from prometheus_client import CollectorRegistry

from completion_server.core.events import Event
from completion_server.telemetry.tracing.settings import TraceSettings
from completion_server.telemetry.tracing.tracing import TracedServer, Tracing
from loadtest.bench.requests.in_process import Passes
from loadtest.bench.runner.schedule import rotated
from loadtest.driving.worker_pool import RunError
from loadtest.simulation.virtual_time import LoopClock
from loadtest.tuning.choice import MIN_ROUNDS, ratio_of_rounds

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_LOST = "failed", "dropped"
_START_S = 60.0
_EXPORT_S = 60.0
_MAX_SPANS = 1_000_000
_BUDGET_S = 0.2
_REPLAYS = 20
RATIOS = {"off": None, "0%": 0.0, "1%": 0.01, "100%": 1.0}
"""Share of the sampled requests by the name of the turn."""


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector that takes all spans and keeps none; yield its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_collect, args=(theirs,), daemon=True)
    process.start()
    try:
        if not ours.poll(_START_S):
            raise TimeoutError(f"the collector did not start within {_START_S:g} s")
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _collect(pipe: Connection) -> None:
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(lambda _data, _context: b"")
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler}),))
    pipe.send(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    server.wait_for_termination()


def measure(passes: Passes, rounds: int) -> dict[str, float]:
    """Return figures for a request: the median CPU time of the front end, and its ratio to that without traces.

    A ratio is the mean over rounds with its 95% interval. Many short turns tell more than a few long ones: what else
    the machine does changes within seconds. Raises RunError if spans were lost, or there are too few rounds for an
    interval.
    """
    if rounds < MIN_ROUNDS:
        raise RunError(f"rounds: at least {MIN_ROUNDS} are needed for an interval, got {rounds}")
    with collector() as endpoint:
        contestants = {name: _Contestant(passes, endpoint, ratio) for name, ratio in RATIOS.items()}
        try:
            for number in range(rounds + 1):
                for each in rotated(list(contestants.values()), number):
                    each.turn()
                    if not number:  # it imports OpenTelemetry and connects
                        each.cpu_ms.clear()
        finally:
            for each in contestants.values():
                each.close()
    cpu_ms = {name: np.array(each.cpu_ms) for name, each in contestants.items()}
    found = {f"front_end_cpu_ms_traces_{name.rstrip('%')}": float(np.median(each)) for name, each in cpu_ms.items()}
    for name in list(RATIOS)[1:]:
        ratio = ratio_of_rounds(cpu_ms[name], cpu_ms["off"])
        key = f"traces_{name.rstrip('%')}"
        found |= {f"{key}_ratio": ratio.value, f"{key}_ratio_low": ratio.low, f"{key}_ratio_high": ratio.high}
        found[f"{key}_spans"] = contestants[name].num_spans / passes.num_requests / (rounds + 1)
    found["traces_unsampled_us"] = asyncio.run(_unsampled_us(passes.events(), passes.num_requests))
    return found


async def _unsampled_us(events: Sequence[Event], num_requests: int) -> float:
    """Return the CPU microseconds that traces add to a request that is not sampled: passing its events on.

    That is less than the noise between two passes, so it is measured alone.
    """
    service = TracedServer("bench", "bench", "region")
    settings = TraceSettings("http://127.0.0.1:1", sample_ratio=0.0)
    tracing = Tracing(settings, service, LoopClock(), CollectorRegistry(), budget_s=_BUDGET_S)  # not started: no export
    traced, plain = tracing.heard_by(_ignore), _ignore
    best_s = dict.fromkeys((traced, plain), math.inf)
    for _ in range(_REPLAYS):
        for emit in best_s:
            began_s = time.process_time()
            for event in events:
                emit(event)
            if emit is traced:
                for _request in range(num_requests):
                    tracing.begin_trace("", "")
            best_s[emit] = min(best_s[emit], time.process_time() - began_s)
    return (best_s[traced] - best_s[plain]) / num_requests * 1e6


def _ignore(_event: Event) -> None:
    pass


class _Contestant:
    """A front end with one share of sampled requests. It is connected for all turns, as a server is."""

    def __init__(self, passes: Passes, endpoint: str, ratio: float | None) -> None:
        self.cpu_ms: list[float] = []
        """CPU milliseconds of a request in each turn."""
        self._passes = passes
        self._registry = registry = CollectorRegistry()
        settings = TraceSettings()
        if ratio is not None:
            settings = TraceSettings(endpoint, sample_ratio=ratio, max_queued_spans=_MAX_SPANS, timeout_s=_EXPORT_S)
        service = TracedServer("bench", "bench", "region")
        self._tracing = Tracing(settings, service, LoopClock(), registry, budget_s=_BUDGET_S)
        self._tracing.start()

    @property
    def num_spans(self) -> float:
        """Spans that were exported in all turns."""
        return self._count("exported")

    def turn(self) -> None:
        """Measure one pass. Raises RunError if spans were lost."""
        self.cpu_ms.append(self._passes.front_end_ms(self._tracing))
        lost = sum(map(self._count, _LOST))
        if lost:
            raise RunError(f"{lost:g} spans were lost; the figures are too low")

    def close(self) -> None:
        """Close the connection to the collector."""
        asyncio.run(self._tracing.aclose())

    def _count(self, result: str) -> float:
        return self._registry.get_sample_value("completion_trace_spans_total", {"result": result}) or 0.0
