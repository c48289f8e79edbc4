"""Measures the CPU time that traces add to the front end of a request, with a collector in a process of its own.

Passes without traces, with 1% of the requests and with all of them sampled take turns. The time of the thread that
exports counts, until the last span is with the collector.
"""

import multiprocessing
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
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
RATIOS = {"off": None, "1%": 0.01, "100%": 1.0}
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
    """Return figures for a request: CPU milliseconds of the front end in each turn, and what traces add."""
    with collector() as endpoint:
        turns = [_turns(passes, endpoint) for _ in range(rounds + 1)][1:]  # the first one imports OpenTelemetry
    found: dict[str, float] = {}
    for name in RATIOS:
        key = name.rstrip("%")
        found[f"front_end_cpu_ms_traces_{key}"] = min(turn[name].cpu_ms for turn in turns)
        if name != "off":
            shares = [turn[name].cpu_ms / turn["off"].cpu_ms - 1 for turn in turns]
            found[f"traces_{key}_added_share"] = statistics.median(shares)
            found[f"traces_{key}_added_share_least"] = min(shares)
            found[f"traces_{key}_added_share_most"] = max(shares)
            found[f"traces_{key}_spans"] = turns[-1][name].num_spans / passes.num_requests
    return found


@dataclass(frozen=True, slots=True)
class _Turn:
    cpu_ms: float
    num_spans: float
    """Exported spans."""


def _turns(passes: Passes, endpoint: str) -> dict[str, _Turn]:
    """Measure one turn of each kind."""
    found = {}
    for name, ratio in RATIOS.items():
        registry = CollectorRegistry()
        settings = TraceSettings()
        if ratio is not None:
            settings = TraceSettings(endpoint, sample_ratio=ratio, max_queued_spans=_MAX_SPANS, timeout_s=_EXPORT_S)
        tracing = Tracing(settings, Service("bench", "bench", "region"), LoopClock(), registry, budget_s=_BUDGET_S)
        tracing.start()
        cpu_ms = passes.front_end_ms(tracing)
        spans = registry.get_sample_value("completion_trace_spans_total", {"result": "exported"})
        lost = sum(registry.get_sample_value("completion_trace_spans_total", {"result": each}) or 0 for each in _LOST)
        if lost:
            msg = f"{lost:g} spans were lost; the figures are too low"
            raise RunError(msg)
        found[name] = _Turn(cpu_ms, spans or 0.0)
    return found
