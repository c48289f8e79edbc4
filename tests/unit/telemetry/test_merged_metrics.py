"""The metrics of several processes as those of one."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from completion_server.telemetry.merged import MergedRegistry
from completion_server.telemetry.metrics_server import render

BUCKETS = (0.1, 1.0)


def process(requests: int, sessions: int, slots: int, seconds: float, memory: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("completion_requests", "Requests.", ["outcome"], registry=registry).labels("stop").inc(requests)
    Gauge("completion_live_sessions", "Sessions.", registry=registry).set(sessions)
    Gauge("completion_slots", "Slots.", registry=registry).set(slots)
    Gauge("completion_engine_ready", "Ready.", registry=registry).set(slots)
    Gauge("process_resident_memory_bytes", "Memory.", registry=registry).set(memory)
    Histogram("completion_ttft_seconds", "TTFT.", buckets=BUCKETS, registry=registry).observe(seconds)
    return registry


def page(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def merged() -> MergedRegistry:
    pages = {"0": page(process(2, 3, 8, 0.05, 100)), "1": page(process(5, 4, 9, 0.5, 200))}
    return MergedRegistry(process(0, 0, 0, 2.0, 300), lambda: pages)


def values(registry: CollectorRegistry) -> dict[str, float]:
    lines = (line for line in page(registry).splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_counts_are_added_and_limits_are_not() -> None:
    found = values(merged())
    assert found['completion_requests_total{outcome="stop"}'] == 7
    assert found["completion_live_sessions"] == 7
    assert found["completion_slots"] == 9
    assert found['completion_ttft_seconds_bucket{le="0.1"}'] == 1
    assert found['completion_ttft_seconds_bucket{le="1.0"}'] == 2
    assert found["completion_ttft_seconds_count"] == 3
    assert found["completion_ttft_seconds_sum"] == 2.55


def test_what_the_parent_alone_knows_is_its_own() -> None:
    assert values(merged())["completion_engine_ready"] == 0


def test_processes_of_the_system_are_told_apart() -> None:
    found = values(merged())
    assert {found[f'process_resident_memory_bytes{{process="{name}"}}'] for name in ("parent", "0", "1")} == {
        300, 100, 200,
    }  # fmt: skip


def test_counters_do_not_fall_when_a_process_ends() -> None:
    registry = merged()
    registry.ended(page(process(4, 6, 7, 0.05, 50)))
    found = values(registry)
    assert found['completion_requests_total{outcome="stop"}'] == 11
    assert found["completion_ttft_seconds_count"] == 4
    assert found["completion_live_sessions"] == 7
    assert 50 not in found.values()


def test_a_page_may_be_asked_for_some_metrics() -> None:
    shown = render(merged(), ["completion_requests"])
    assert 'completion_requests_total{outcome="stop"} 7.0' in shown
    assert "sessions" not in shown
