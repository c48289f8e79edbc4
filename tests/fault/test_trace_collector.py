"""Collectors of traces that are away, hang, refuse, or are reached in another way: no request notices."""

import asyncio
import logging
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext
from prometheus_client import CollectorRegistry

from completion_server.composition.monitoring import make_tracing
from completion_server.core.clock import MonotonicClock
from completion_server.core.errors import ConfigError
from completion_server.core.events import Event, Marks, RequestEnded
from completion_server.core.outcome import End, FinishReason, Outcome
from completion_server.core.request import Caller, Request
from completion_server.core.trace_context import TraceContext
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.telemetry.tracing import collector, tracing
from completion_server.telemetry.tracing.export import OtlpExport
from completion_server.telemetry.tracing.settings import TraceSettings
from completion_server.telemetry.tracing.spans import RequestTrace
from completion_server.telemetry.tracing.tracer import TraceMetrics
from tests.support.certificates import make_identity_in
from tests.support.otlp import Receiver, grpc_receiver, http_receiver
from tests.support.server import RunningServer, ask, eventually, make_config, request, run_server

TRACED = ("traces.sample_ratio=1", "traces.export_interval_s=0.05", "engine.warm_up=false", "shed.budget_ms=60000")
LOGGER = "completion_server.telemetry.tracing.collector"


def make_engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: ("alpha", " beta"))


async def answer(server: RunningServer, *sequences: int) -> None:
    """Have requests answered, whatever becomes of their traces."""
    for sequence in sequences:
        found = await ask(server.stub, request("x = ", sequence=sequence), timeout=10)
        assert (found.reason, found.text) == ("stop", "alpha beta")


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


async def test_a_collector_that_comes_late_gets_the_spans_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    with grpc_receiver() as first:
        address = first.address
    config = make_config(*TRACED, f"traces.endpoint={address}", "traces.timeout_s=0.3")
    with caplog.at_level(logging.INFO, LOGGER):
        async with run_server(config, make_engine) as server:
            await answer(server, 1, 2)
            await eventually(lambda: server.count("completion_trace_spans_total", result="failed") == 16)
            assert server.count("completion_trace_collector_reached") == 0
            with grpc_receiver(port=int(address.rpartition(":")[2])) as receiver:
                sequence = 3
                while not receiver.spans:
                    await answer(server, sequence)
                    await asyncio.sleep(0.05)
                    sequence += 1
                await eventually(lambda: server.count("completion_trace_collector_reached") == 1)
                await answer(server, sequence)
                lost, back = messages(caplog)
    assert f"{address} takes no spans; requests are served without them" in lost
    assert "UNAVAILABLE" in lost
    assert f"{address} takes spans again" in back


async def test_a_collector_that_hangs_delays_neither_requests_nor_the_end(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    with grpc_receiver(receiver):
        receiver.hangs = threading.Event()
        queue = ("traces.max_queued_spans=64", "traces.timeout_s=2")
        config = make_config(*TRACED, *queue, f"traces.endpoint={receiver.address}")
        async with run_server(config, make_engine) as server:
            await answer(server, *range(1, 21))
            # The last spans are made when the server has written the End that the client has seen already.
            await eventually(lambda: server.count("completion_trace_spans_total", result="dropped") == 20 * 8 - 64)
            await eventually(lambda: receiver.exports == 1)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 15, "twice the timeout, on a slow machine"
        assert server.count("completion_trace_spans_total", result="failed") == 64
        assert len(messages(caplog)) == 1


@pytest.mark.parametrize("status", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_collector_that_refuses_costs_the_spans_alone(
    status: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc_receiver(Receiver(fails_with=status)) as receiver:
        config = make_config(*TRACED, f"traces.endpoint={receiver.address}", "traces.timeout_s=0.3")
        async with run_server(config, make_engine) as server:
            await answer(server, 1, 2, 3)
            await eventually(lambda: server.count("completion_trace_spans_total", result="failed") == 24)
        (line,) = messages(caplog)
        assert status.name in line


async def test_spans_go_over_tls_with_the_headers_of_a_file(tmp_path: Path) -> None:
    identity = make_identity_in(tmp_path, "collector")
    headers = tmp_path / "headers"
    headers.write_text("Authorization: Bearer secret\n\nx-tenant: acme\n")
    with grpc_receiver(credentials=identity.server_credentials()) as receiver:
        tls = (f"traces.ca={identity.certificate}", f"traces.headers_file={headers}")
        async with run_server(make_config(*TRACED, *tls, f"traces.endpoint={receiver.address}"), make_engine) as server:
            await answer(server, 1)
            await eventually(lambda: len(receiver.spans) == 8)
    assert receiver.headers["authorization"] == "Bearer secret"
    assert receiver.headers["x-tenant"] == "acme"


@pytest.mark.parametrize(("protocol", "is_behind"), [("grpc", False), ("http", False), ("http", True)])
async def test_proxies_are_for_other_hosts_and_the_token_is_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, is_behind: bool
) -> None:
    netrc, headers = tmp_path / "netrc", tmp_path / "headers"
    netrc.write_text("default login me password other\n")
    netrc.chmod(0o600)
    headers.write_text("authorization: Bearer secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with {"grpc": grpc_receiver, "http": http_receiver}[protocol]() as receiver:
        monkeypatch.setenv("http_proxy", receiver.address if is_behind else "http://127.0.0.1:9")
        endpoint = "http://collector.invalid:4318" if is_behind else receiver.address
        to_collector = (f"traces.endpoint={endpoint}", f"traces.protocol={protocol}", f"traces.headers_file={headers}")
        exporter = collector.make_exporter(make_config(*TRACED, *to_collector).traces)
        span = ReadableSpan("a span", SpanContext(1, 1, is_remote=False))
        result = await asyncio.to_thread(exporter.export, [span])
        exporter.shutdown()
    assert result is SpanExportResult.SUCCESS
    assert [each.name for each in receiver.spans] == ["a span"]
    assert receiver.headers["authorization"] == "Bearer secret"


async def test_the_last_spans_are_exported_at_the_end() -> None:
    with grpc_receiver() as receiver:
        config = make_config(*TRACED, f"traces.endpoint={receiver.address}", "traces.export_interval_s=60")
        async with run_server(config, make_engine) as server:
            await answer(server, 1)
            assert receiver.spans == []
        assert len(receiver.spans) == 8


async def test_no_trace_is_made_by_default() -> None:
    async with run_server(make_config("engine.warm_up=false"), make_engine) as server:
        await answer(server, 1)
        names = {family.name for family in server.registry.collect()}
    assert not [name for name in names if "trace" in name]


async def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(*TRACED, "traces.endpoint=http://127.0.0.1:4317")
    monkeypatch.setitem(sys.modules, "completion_server.telemetry.tracing.collector", None)
    monkeypatch.setitem(sys.modules, "completion_server.telemetry.tracing.export", None)
    with pytest.raises(ConfigError, match=r"traces.endpoint: needs OpenTelemetry.*completion-server\[traces\]"):
        tracing.check_usable(config.traces, {})
    with pytest.raises(ConfigError, match="extra `traces`"):
        async with run_server(config, make_engine):
            raise AssertionError("it started")


async def test_requests_are_counted_though_their_export_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_export: OtlpExport, _request: RequestTrace) -> None:
        raise OSError

    monkeypatch.setattr(OtlpExport, "export", fail)
    config = make_config(*TRACED, "traces.endpoint=http://127.0.0.1:1")
    traces = make_tracing(config, MonotonicClock(), CollectorRegistry())
    traces.start()
    counted: list[Event] = []
    emit, num_failed = traces.heard_by(counted.append), 0
    for number in range(5000):  # more than may wait for their End to be written
        sampled = TraceContext(f"{number + 1:032x}", f"{number + 1:016x}", is_sampled=True)
        ended = Request(str(number), Caller("u", "s"), 0, "", "", "x = ", "", 8, 0.0, trace=sampled)
        try:
            emit(RequestEnded(ended, End(Outcome(FinishReason.STOP)), Marks(0.0, ended=0.1)))
        except OSError:
            num_failed += 1
    assert num_failed > 0
    assert len(counted) == 5000
    monkeypatch.undo()
    await traces.aclose()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"\xff" * 64])
async def test_an_authority_that_cannot_be_used_is_refused_before_the_start(
    tmp_path: Path, protocol: str, content: bytes | None
) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(content or b"")
    to_collector = ("traces.endpoint=https://127.0.0.1:4317", f"traces.ca={path}", f"traces.protocol={protocol}")
    config = make_config(*TRACED, *to_collector)
    if content is None:
        path.unlink()
    reason = "can't be read: no such file or directory" if content is None else "holds no certificates in PEM format"
    with pytest.raises(ConfigError, match=re.escape(f"traces.ca: {path} {reason}")):
        tracing.check_usable(config.traces, {})
    with pytest.raises(ConfigError, match=r"traces\.ca"):
        collector.make_exporter(config.traces)


@pytest.mark.parametrize("value", ["true", " TRUE "])
def test_traces_that_the_environment_switches_off_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"traces\.endpoint: OTEL_SDK_DISABLED is true in the environment"):
        tracing.check_usable(TraceSettings("http://127.0.0.1:4317"), {"OTEL_SDK_DISABLED": value})
    tracing.check_usable(TraceSettings("http://127.0.0.1:4317"), {"OTEL_SDK_DISABLED": "false"})
    tracing.check_usable(TraceSettings(), {"OTEL_SDK_DISABLED": value})


@pytest.mark.parametrize("value", ["", "5s"])
def test_a_timeout_of_the_environment_that_stops_the_sdk_is_refused(value: str) -> None:
    environ, settings = {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": value}, TraceSettings("http://127.0.0.1:4317")
    with pytest.raises(ConfigError, match=r"traces\.endpoint: OTEL_EXPORTER_OTLP_TRACES_TIMEOUT .* is no number"):
        tracing.check_usable(settings, environ)
    tracing.check_usable(settings, {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "5"})
    tracing.check_usable(replace(settings, protocol="http"), environ)
    tracing.check_usable(TraceSettings(), environ)


@pytest.mark.parametrize("name", ["OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"])
@pytest.mark.parametrize("value", ["many", "-1"])
def test_a_limit_of_the_environment_that_stops_the_sdk_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    settings = make_config(*TRACED, "traces.endpoint=http://127.0.0.1:1").traces
    export = OtlpExport(settings, {}, MonotonicClock(), TraceMetrics(CollectorRegistry()), "1")
    try:
        with pytest.raises(ConfigError, match=rf"traces\.endpoint: {name} must be a non-negative integer"):
            export.share()
    finally:
        export.close()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_variables_of_the_sdk_have_no_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    for name in ("COMPRESSION", "TIMEOUT", "ENDPOINT", "INSECURE", "PROTOCOL"):
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", "bad")
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_TRACES_{name}", "bad")
    for name in ("CREDENTIAL_PROVIDER", "TRACES_CREDENTIAL_PROVIDER", "RETRYABLE_ERROR_CODES"):
        monkeypatch.setenv(f"OTEL_PYTHON_EXPORTER_OTLP_{protocol.upper()}_{name}", "bad")
    for name in ("SCHEDULE_DELAY", "EXPORT_TIMEOUT", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE"):
        monkeypatch.setenv(f"OTEL_BSP_{name}", "bad")
    if protocol == "grpc":  # it refuses a bad one, see above
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.000001")
    with {"grpc": grpc_receiver, "http": http_receiver}[protocol]() as receiver:
        to_collector = (f"traces.endpoint={receiver.address}", f"traces.protocol={protocol}")
        settings = make_config(*TRACED, *to_collector).traces
        exporter = collector.make_exporter(settings)
        result = exporter.export([ReadableSpan("a span", SpanContext(1, 1, is_remote=False))])
        exporter.shutdown()
        OtlpExport(settings, {}, MonotonicClock(), TraceMetrics(CollectorRegistry()), "1").close()
    assert result is SpanExportResult.SUCCESS
    assert messages(caplog) == []


@pytest.mark.parametrize("line", ["Bearer secret", "authorization:", "name with spaces: x", "name: é"])
async def test_a_line_that_is_no_header_is_named_without_its_content(tmp_path: Path, line: str) -> None:
    headers = tmp_path / "headers"
    headers.write_text(f"x-tenant: acme\n{line}\n", encoding="utf-8")
    config = make_config(*TRACED, "traces.endpoint=http://127.0.0.1:4317", f"traces.headers_file={headers}")
    with pytest.raises(ConfigError, match=r'traces.headers_file: line 2 of .* must be "name: value"') as refused:
        tracing.check_usable(config.traces, {})
    assert "secret" not in str(refused.value)
