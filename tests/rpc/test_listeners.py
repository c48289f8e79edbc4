"""The listeners: TLS, Unix sockets, health, reflection, metrics, and the operators' service."""

import asyncio
import datetime
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import grpc
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.engine.scripted.engine import ScriptedEngine
from completion_server.telemetry import logs
from tests.support.server import RunningServer, ask, make_config, request, run_server

SERVICE = "completion.v1.CompletionService"


@dataclass(frozen=True)
class Identity:
    """A key and a certificate that it signed for itself."""

    key: Path
    certificate: Path

    def channel_credentials(self, server: "Identity") -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(
            server.certificate.read_bytes(), self.key.read_bytes(), self.certificate.read_bytes()
        )


@pytest.fixture
def make_identity(tmp_path: Path) -> Callable[[str], Identity]:
    def make(name: str) -> Identity:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .sign(key, hashes.SHA256())
        )
        identity = Identity(tmp_path / f"{name}.key", tmp_path / f"{name}.pem")
        identity.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return identity

    return make


@pytest_asyncio.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with run_server(make_config(), ScriptedEngine) as running:
        yield running


def admin(server: RunningServer) -> AdminServiceStub:
    return AdminServiceStub(grpc.aio.insecure_channel(server.ready.admin_address))


async def test_mutual_tls_admits_only_clients_with_a_certificate(
    make_identity: Callable[[str], Identity],
) -> None:
    ours, theirs, stranger = make_identity("server"), make_identity("client"), make_identity("stranger")
    config = make_config(
        f"server.tls.certificate={ours.certificate}",
        f"server.tls.key={ours.key}",
        f"server.tls.client_ca={theirs.certificate}",
    )
    async with run_server(config, ScriptedEngine) as server:
        async with grpc.aio.secure_channel(server.ready.address, theirs.channel_credentials(ours)) as channel:
            assert (await ask(CompletionServiceStub(channel), request(max_tokens=4))).code is grpc.StatusCode.OK
        for credentials in (
            stranger.channel_credentials(ours),
            grpc.ssl_channel_credentials(ours.certificate.read_bytes()),
        ):
            async with grpc.aio.secure_channel(server.ready.address, credentials) as channel:
                refused = await ask(CompletionServiceStub(channel), request(), timeout=2)
                assert refused.code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
        plain = await ask(server.stub, request(), timeout=2)  # the same call as below, on a server that answers it
        assert plain.code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    async with run_server(make_config(), ScriptedEngine) as server:
        assert (await ask(server.stub, request())).code is grpc.StatusCode.OK


async def test_a_unix_socket_serves_requests(tmp_path: Path) -> None:
    async with run_server(make_config(f"server.listen=unix:{tmp_path}/socket"), ScriptedEngine) as server:
        assert (await ask(server.stub, request(max_tokens=4))).code is grpc.StatusCode.OK


@pytest.mark.parametrize("key", ["server.listen", "server.metrics_listen"])
async def test_a_reachable_listener_without_tls_logs_a_warning(key: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "completion_server"):
        async with run_server(make_config(f"{key}=0.0.0.0:0"), ScriptedEngine):
            pass
    assert f"{key}: " in caplog.text
    assert "without TLS" in caplog.text


async def test_trusting_names_on_a_reachable_listener_logs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "completion_server"):
        async with run_server(
            make_config("server.listen=0.0.0.0:0", "admission.trust_user_names=true"), ScriptedEngine
        ):
            pass
    assert "admission.trust_user_names: " in caplog.text
    assert "without client certificates" in caplog.text


async def test_a_loopback_listener_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "completion_server"):
        async with run_server(make_config(), ScriptedEngine):
            logging.getLogger("completion_server.app").warning("warnings are seen here")
    assert "warnings are seen here" in caplog.text
    assert "without TLS" not in caplog.text


async def test_health_is_reported_for_the_server_and_for_each_service(server: RunningServer) -> None:
    stub = health_pb2_grpc.HealthStub(server.channel)
    for service in ("", SERVICE):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    server.app.drain(1.0)
    assert (await asyncio.wait_for(watch.read(), 5)).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_reflection_serves_the_contract(server: RunningServer) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = {service.name async for answer in call for service in answer.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_reflection_can_be_switched_off() -> None:
    async with run_server(make_config("server.reflection=false"), ScriptedEngine) as server:
        stub = reflection_pb2_grpc.ServerReflectionStub(server.channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_operators_read_the_servers_status(server: RunningServer) -> None:
    await ask(server.stub, request(max_tokens=4))
    status = await admin(server).GetStatus(admin_pb2.GetStatusRequest(), timeout=5)
    assert status.engine_state == admin_pb2.ENGINE_STATE_READY
    assert status.prompt_template == server.ready.prompt_template == "embedded"
    assert dict(status.ended_requests) == {"length": 1}
    assert status.uptime_s > 0
    assert not status.draining


async def test_the_contract_of_operators_is_not_served_to_editors(server: RunningServer) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await AdminServiceStub(server.channel).Drain(admin_pb2.DrainRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_operators_change_the_log_level(server: RunningServer) -> None:
    stub = admin(server)
    first = await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level="debug"), timeout=5)
    second = await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level=first.previous_level), timeout=5)
    assert second.previous_level == "debug"
    with pytest.raises(grpc.aio.AioRpcError, match="level: must be one of debug, info, warning, error, got 'loud'"):
        await stub.SetLogLevel(admin_pb2.SetLogLevelRequest(level="loud"), timeout=5)


async def test_operators_drain_the_server(server: RunningServer) -> None:
    answer = await admin(server).Drain(admin_pb2.DrainRequest(grace_ms=1000), timeout=5)
    assert answer.live_requests == 0
    await asyncio.wait_for(server.task, 10)


async def test_metrics_are_served_over_http(server: RunningServer) -> None:
    await ask(server.stub, request(max_tokens=4))

    def scrape() -> bytes:
        with urlopen(f"http://{server.ready.metrics_address}/metrics", timeout=5) as answer:
            body: bytes = answer.read()
        return body

    body = await asyncio.to_thread(scrape)
    assert b'completion_stage_seconds_bucket{le="0.2",stage="total"}' in body
    assert b"completion_engine_ready 1.0" in body


async def test_logs_never_hold_client_text(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await ask(server.stub, request("SECRET = 'hunter2'\n", suffix="hunter3", max_tokens=4))
        await ask(server.stub, request("hunter2", max_tokens=-1))
    assert "hunter" not in caplog.text


def test_a_traceback_shows_no_variables(capsys: pytest.CaptureFixture[str]) -> None:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    typed = "hunter2"
    try:
        logs.configure(logs.LogSettings(format="console"))
        try:
            raise ValueError(len(typed))
        except ValueError:
            logging.getLogger("completion_server.test").exception("failed")
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    line = capsys.readouterr().err
    assert "Traceback" in line
    assert "hunter2" not in line


def test_logs_are_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        logs.configure(logs.LogSettings(format="json"))
        logging.getLogger("completion_server.test").info("engine restarted (restart %d)", 3)
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    line = capsys.readouterr().err
    assert '"event": "engine restarted (restart 3)"' in line
    assert '"level": "info"' in line
