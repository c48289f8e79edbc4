"""Measures the CPU time that traces add to the front end of a request, with a collector in a process of its own.

Passes without traces, and with none, 1% and all of the requests sampled, take turns. The time of the thread that
exports counts, until the last span is with the collector; imports, connecting and closing do not.
"""

import asyncio
import multiprocessing
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection

import grpc
from prometheus_client import CollectorRegistry

from completion_server.telemetry.tracing.settings import TraceSettings
from completion_server.telemetry.tracing.tracing import Service, Tracing
from loadtest.bench.requests.in_process import Passes
from loadtest.driving.worker_pool import RunError
from loadtest.simulation.virtual_time import LoopClock

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_LOST = "failed", "dropped"
_START_S = 60.0
_EXPORT_S = 60.0
_MAX_SPANS = 1_000_000
_BUDGET_S = 0.2
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
            msg = f"the collector did not start within {_START_S:g} s"
            raise TimeoutError(msg)
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
    """Return figures for a request: CPU of the front end in each turn, and what traces add.

    The added time of 1% is also derived, because it is less than the noise between two passes: what a request that is
    not sampled pays, and a hundredth of what a sampled one pays beyond that.
    """
    with collector() as endpoint:
        contestants = {name: _Contestant(passes, endpoint, ratio) for name, ratio in RATIOS.items()}
        try:
            for number in range(rounds + 1):
                for each in contestants.values():
                    each.turn()
                    if not number:  # it imports OpenTelemetry and connects
                        each.forget()
        finally:
            for each in contestants.values():
                each.close()
    best = {name: min(each.cpu_ms) for name, each in contestants.items()}
    found = {f"front_end_cpu_ms_traces_{name.rstrip('%')}": cpu_ms for name, cpu_ms in best.items()}
    for name, each in contestants.items():
        if name != "off":
            key = name.rstrip("%")
            pairs = zip(each.cpu_ms, contestants["off"].cpu_ms, strict=True)
            shares = [with_traces / without - 1 for with_traces, without in pairs]
            found[f"traces_{key}_added_share"] = best[name] / best["off"] - 1
            found[f"traces_{key}_added_share_median"] = statistics.median(shares)
            found[f"traces_{key}_spans"] = each.num_spans / passes.num_requests / (rounds + 1)
    sampled_ms = best["100%"] - best["0%"]
    found["traces_sampled_request_ms"] = sampled_ms
    found["traces_1_derived_share"] = (best["0%"] - best["off"] + sampled_ms / 100) / best["off"]
    return found


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
        service = Service("bench", "bench", "region")
        self._tracing = Tracing(settings, service, LoopClock(), registry, budget_s=_BUDGET_S)
        self._tracing.start()

    @property
    def num_spans(self) -> float:
        """Spans that were exported in all turns."""
        return self._num_spans("exported")

    def turn(self) -> None:
        """Measure one pass.

        Raises:
            RunError: spans were lost.

        """
        self.cpu_ms.append(self._passes.front_end_ms(self._tracing))
        lost = sum(map(self._num_spans, _LOST))
        if lost:
            msg = f"{lost:g} spans were lost; the figures are too low"
            raise RunError(msg)

    def forget(self) -> None:
        """Let the turns up to now not count."""
        self.cpu_ms.clear()

    def close(self) -> None:
        """Close the connection to the collector."""
        asyncio.run(self._tracing.aclose())

    def _num_spans(self, result: str) -> float:
        return self._registry.get_sample_value("completion_trace_spans_total", {"result": result}) or 0.0
