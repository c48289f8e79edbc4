"""The listeners: TLS, Unix sockets, health, reflection, metrics, and the operators' service."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.certificates import MakeIdentity
from tests.support.scripted import letters
from tests.support.server import (
    ENDLESS,
    RunningServer,
    ask,
    endless_config,
    endless_engine,
    eventually,
    make_config,
    next_event,
    request,
    run_server,
)

BEGINS_LOW = "begins low; more are added only while nearly all are in use"
SERVICE = "completion.v1.CompletionService"
FAST = ServiceTimes(0.001, 0.0, 0.001, 0.0, 0.0, 0.0)


@pytest_asyncio.fixture(scope="module")
async def shared() -> AsyncIterator[RunningServer]:
    """Yield a server that all tests leave as it is."""
    async with run_server(make_config(), ScriptedEngine) as running:
        yield running


def admin(server: RunningServer) -> AdminServiceStub:
    return AdminServiceStub(grpc.aio.insecure_channel(server.ready.admin_address))


async def test_mutual_tls_admits_only_clients_with_a_certificate(
    shared: RunningServer, make_identity: MakeIdentity
) -> None:
    ours, theirs, stranger = make_identity("server"), make_identity("client"), make_identity("stranger")
    config = make_config(
        f"server.tls.certificate={ours.certificate}",
        f"server.tls.key={ours.key}",
        f"server.tls.client_ca={theirs.certificate}",
    )
    trusted = grpc.ssl_channel_credentials(ours.certificate.read_bytes())
    refused = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    async with run_server(config, ScriptedEngine) as server:
        for credentials, codes in (
            (theirs.channel_credentials(ours), {grpc.StatusCode.OK}),
            (stranger.channel_credentials(ours), refused),
            (trusted, refused),
        ):
            async with grpc.aio.secure_channel(server.ready.address, credentials) as channel:
                answer = await ask(CompletionServiceStub(channel), request(max_tokens=4), timeout=2)
                assert answer.code in codes
        assert (await ask(server.stub, request(), timeout=2)).code in refused  # without TLS
    assert (await ask(shared.stub, request(), timeout=2)).code is grpc.StatusCode.OK


async def test_a_unix_socket_serves_requests(tmp_path: Path) -> None:
    async with run_server(make_config(f"server.listen=unix:{tmp_path}/socket"), ScriptedEngine) as server:
        assert (await ask(server.stub, request(max_tokens=4))).code is grpc.StatusCode.OK


async def test_reachable_listeners_without_tls_log_warnings(caplog: pytest.LogCaptureFixture) -> None:
    config = make_config("server.listen=0.0.0.0:0", "server.metrics_listen=0.0.0.0:0", "server.insecure=true")
    with caplog.at_level(logging.WARNING, "completion_server"):
        async with run_server(config, ScriptedEngine):
            pass
    assert "server.insecure: server.listen: other machines can reach 0.0.0.0:" in caplog.text
    assert "server.metrics_listen: listening on 0.0.0.0:0 without TLS" in caplog.text


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_serves_the_contract(shared: RunningServer, version: str) -> None:
    ask = reflection_pb2.ServerReflectionRequest
    call = shared.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=ask.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )(iter([ask(list_services=""), ask(file_containing_symbol=SERVICE)]), timeout=10)
    listed, found = [answer async for answer in call]
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    (file,) = found.file_descriptor_response.file_descriptor_proto
    assert FileDescriptorProto.FromString(file).name == "completion/v1/completion.proto"


async def test_the_contract_of_operators_is_not_served_to_editors(shared: RunningServer) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await AdminServiceStub(shared.channel).Drain(admin_pb2.DrainRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_operators_change_the_log_level(shared: RunningServer) -> None:
    stub = admin(shared)
    first = await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level="debug"), timeout=5)
    second = await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level=first.previous_level), timeout=5)
    assert second.previous_level == "debug"
    with pytest.raises(grpc.aio.AioRpcError, match="level: must be one of debug, info, warning, error, got 'loud'"):
        await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level="loud"), timeout=5)


async def probe(server: RunningServer, path: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urlopen(f"http://{server.ready.metrics_address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode().strip()
        except HTTPError as error:
            return error.code, error.read().decode().strip()

    return await asyncio.to_thread(get)


async def test_a_stuck_event_loop_is_no_life(shared: RunningServer) -> None:
    found: list[tuple[int, str]] = []

    def get() -> None:
        found.append(asyncio.run(probe(shared, "/healthz")))

    thread = threading.Thread(target=get)
    thread.start()
    thread.join(30)  # keeps the event loop from running
    assert found == [(503, "the event loop did not answer within 0.8 s")]


async def test_a_drain_is_told_on_every_listener_and_ends_the_server() -> None:
    def make_engine() -> ScriptedEngine:
        return endless_engine(lambda _request: (f" w{n}" for n in range(ENDLESS)), ServiceTimes(decode_base_s=0.05))

    async with run_server(endless_config("server.reflection=false"), make_engine) as server:
        health = health_pb2_grpc.HealthStub(server.channel)
        for service in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await next_event(watch)).status == health_pb2.HealthCheckResponse.SERVING
        reflected = reflection_pb2_grpc.ServerReflectionStub(server.channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        assert await reflected.code() is grpc.StatusCode.UNIMPLEMENTED
        for path, found in (("/healthz", (200, "ok")), ("/readyz", (200, "ready"))):
            assert await probe(server, path) == found
        assert (await probe(server, "/ready"))[0] == 404
        call = asyncio.create_task(ask(server.stub, request(max_tokens=ENDLESS)))
        await eventually(lambda: server.count("completion_running_requests") == 1)
        answered = await admin(server).Drain(admin_pb2.DrainRequest(grace_ms=1000), timeout=5)
        assert answered.live_requests == 1
        assert (await next_event(watch)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await probe(server, "/healthz") == (200, "ok")
        assert await probe(server, "/readyz") == (503, "draining")
        await call
        await asyncio.wait_for(server.task, 10)


async def test_operators_read_status_and_metrics() -> None:
    config = make_config("server.region=us-east", "scheduling.step_tolerance=8")
    async with run_server(config, lambda: ScriptedEngine(letters, FAST)) as server:
        await ask(server.stub, request(max_tokens=4))
        stub, names = admin(server), ["completion_requests"]
        chosen = await stub.GetMetrics(admin_pb2.GetMetricsRequest(names=names), timeout=10)
        everything = await stub.GetMetrics(admin_pb2.GetMetricsRequest(), timeout=10)
        status = await stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=5)
        _, page = await probe(server, "/metrics")
    assert status.engine_state == admin_pb2.ENGINE_STATE_READY
    assert status.prompt_template == server.ready.prompt_template == "embedded"
    assert (dict(status.ended_requests), status.draining, status.region) == ({"length": 1}, False, "us-east")
    assert (status.slots, status.max_slots) == (8, 32)
    assert status.slots_reason == server.ready.load.slots_reason == BEGINS_LOW
    line = 'completion_requests_total{outcome="length",region="us-east",shed_reason="",trigger="automatic"} 1.0'
    assert line in chosen.text
    assert "completion_stage_seconds" not in chosen.text
    for text in (everything.text, page):
        assert 'completion_stage_seconds_bucket{le="0.2",region="us-east",stage="total"} 1.0' in text
    assert 0 < chosen.uptime_s <= everything.uptime_s <= status.uptime_s
