"""Authentication over gRPC, through the whole server: who gets in, and for what."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from completion.v1 import admin_pb2
from completion.v1 import completion_pb2 as pb
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.core.credential import Scope
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.authentication import KnownCallers, verified
from tests.support.certificates import MakeIdentity
from tests.support.server import (
    ENDLESS,
    RunningServer,
    ask,
    endless_config,
    endless_engine,
    eventually,
    request,
    run_server,
)
from tests.support.waits import named_limit

Metadata = tuple[tuple[str, str], ...]
ENDS_WITHIN_S = 20.0
UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED


def bearer(token: str, *more: tuple[str, str]) -> Metadata:
    return (("authorization", f"Bearer {token}"), *more)


class Generations(list[GenerationRequest]):
    """The script of an engine; records its requests."""

    def __call__(self, generation: GenerationRequest) -> list[str]:
        self.append(generation)
        return ["alpha", "\n"]


@pytest.fixture
def known() -> KnownCallers:
    return KnownCallers(
        {
            "ada": verified("ada", credential="k1"),
            "ada-again": verified("ada", credential="k2"),
            "bob": verified("bob", credential="k4"),
            "reader": verified("reader", Scope.FEEDBACK, credential="k5"),
            "root": verified("root", Scope.ADMIN, credential="k6"),
        }
    )


@pytest.fixture
def generations() -> Generations:
    return Generations()


@pytest_asyncio.fixture
async def server(known: KnownCallers, generations: Generations) -> AsyncIterator[RunningServer]:
    def make_engine() -> ScriptedEngine:
        return endless_engine(generations, ServiceTimes(decode_base_s=0.005))

    async with run_server(endless_config("engine.heartbeat_s=0"), make_engine, known) as running:
        yield running


async def status_of(call: Any) -> grpc.StatusCode:
    """Return the status that a call ends with."""
    async with named_limit(ENDS_WITHIN_S, "the status"):
        code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ((), UNAUTHENTICATED),
        ((("x-user-id", "ada"), ("x-tenant-id", "acme")), UNAUTHENTICATED),
        (bearer("forged"), UNAUTHENTICATED),
        ((("authorization", "Basic ada"),), UNAUTHENTICATED),
        (bearer("reader"), DENIED),
        (bearer("root"), DENIED),
        (bearer("ada"), grpc.StatusCode.OK),
        ((("x-api-key", "ada"),), grpc.StatusCode.OK),
    ],
)
async def test_a_completion_needs_a_valid_credential_with_its_scope(
    server: RunningServer, metadata: Metadata, code: grpc.StatusCode
) -> None:
    answer = await ask(server.stub, request(), metadata=metadata)
    assert answer.code is code, answer.details
    assert "forged" not in answer.details
    stream = server.stub.Session(metadata=metadata)
    await stream.done_writing()
    assert await status_of(stream) is code


async def test_feedback_has_a_scope_of_its_own(server: RunningServer, known: KnownCallers) -> None:
    known.tokens["completes"] = verified("ada", Scope.COMPLETE, credential="k7")
    report = pb.ReportFeedbackRequest(session_id="s", sequence=1, kind=pb.FEEDBACK_KIND_SHOWN)
    codes = {
        token: await status_of(server.stub.ReportFeedback(report, metadata=bearer(token), timeout=ENDS_WITHIN_S))
        for token in ("nobody", "completes", "reader")
    }
    past_the_door = grpc.StatusCode.INVALID_ARGUMENT  # the report is of no request
    assert codes == {"nobody": UNAUTHENTICATED, "completes": DENIED, "reader": past_the_door}


async def test_the_user_is_the_credential_s_and_not_the_metadata_s(
    server: RunningServer, generations: Generations
) -> None:
    as_bob = (("x-user-id", "bob"), ("x-tenant-id", "other"))
    for sequence, metadata in enumerate(
        (bearer("ada"), bearer("ada", *as_bob), bearer("ada-again", *as_bob), bearer("bob")), start=1
    ):
        assert (await ask(server.stub, request(sequence=sequence), metadata=metadata)).reason == "stop"
    *ada, bob = [generation.cache_salt for generation in generations]
    assert len(set(ada)) == 1
    assert bob != ada[0]


async def test_without_authentication_a_token_says_nothing(generations: Generations) -> None:
    config = endless_config("engine.heartbeat_s=0")
    async with run_server(config, lambda: endless_engine(generations, ServiceTimes())) as server:
        for metadata in (bearer("forged"), ()):
            named = (*metadata, ("x-user-id", "ada"))
            assert (await ask(server.stub, request(), metadata=named)).reason == "stop"
        status = await AdminServiceStub(grpc.aio.insecure_channel(server.ready.admin_address)).GetStatus(
            admin_pb2.GetStatusRequest(), timeout=ENDS_WITHIN_S
        )
        assert status.model
    assert len({generation.cache_salt for generation in generations}) == 1


async def test_operators_need_their_scope_on_loopback_too_and_health_needs_none(server: RunningServer) -> None:
    async with grpc.aio.insecure_channel(server.ready.admin_address) as channel:
        stub = AdminServiceStub(channel)
        calls = (
            (stub.GetStatus, admin_pb2.GetStatusRequest()),
            (stub.SetLogLevel, admin_pb2.SetLogLevelRequest(level="info")),
            (stub.GetMetrics, admin_pb2.GetMetricsRequest(names=["completion_requests"])),
            (stub.Drain, admin_pb2.DrainRequest()),
        )
        for token, code in (("", UNAUTHENTICATED), ("forged", UNAUTHENTICATED), ("ada", DENIED)):
            for method, message in calls:
                metadata = bearer(token) if token else ()
                assert await status_of(method(message, metadata=metadata, timeout=ENDS_WITHIN_S)) is code
        assert not server.app.is_draining
        answer = await stub.GetStatus(admin_pb2.GetStatusRequest(), metadata=bearer("root"), timeout=ENDS_WITHIN_S)
        assert answer.model
        for listener in (channel, server.channel):
            health = await health_pb2_grpc.HealthStub(listener).Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_revoked_key_s_stream_and_running_call_end(known: KnownCallers) -> None:
    def make_engine() -> ScriptedEngine:
        return endless_engine(lambda _request: (f" w{i}" for i in range(ENDLESS)), ServiceTimes(decode_base_s=0.01))

    async with run_server(endless_config("engine.heartbeat_s=0"), make_engine, known) as server:
        streams = [server.stub.Session(metadata=bearer(token)) for token in ("ada", "bob")]
        for stream in streams:
            await stream.initial_metadata()
        revoked, other = (
            asyncio.create_task(ask(server.stub, request(max_tokens=ENDLESS), metadata=bearer(token)))
            for token in ("ada", "bob")
        )
        await eventually(lambda: server.count("completion_running_requests") == 2)
        known.revoke("k1")
        async with named_limit(ENDS_WITHIN_S, "the end of the call"):
            answer = await revoked
        assert (answer.code, answer.details) == (UNAUTHENTICATED, "key k1: was revoked")
        assert await status_of(streams[0]) is UNAUTHENTICATED
        assert "key k1: was revoked" in await streams[0].details()
        assert not other.done()
        assert not streams[1].done()
        assert (await ask(server.stub, request(), metadata=bearer("ada"))).code is UNAUTHENTICATED
        other.cancel()


async def test_a_client_s_certificate_names_its_user(
    known: KnownCallers, generations: Generations, make_identity: MakeIdentity
) -> None:
    ours, authority = make_identity("server"), make_identity("authority")
    ada, nobody = (make_identity(name, issuer=authority) for name in ("ada", "nobody"))
    known.names["ada"] = verified("ada", credential="serial 7", kind="certificate")
    config = endless_config(
        "engine.heartbeat_s=0", f"server.tls.certificate={ours.certificate}", f"server.tls.key={ours.key}",
        f"server.tls.client_ca={authority.certificate}",
    )  # fmt: skip
    async with run_server(config, lambda: endless_engine(generations, ServiceTimes()), known) as server:
        for identity, code in ((ada, grpc.StatusCode.OK), (nobody, UNAUTHENTICATED)):
            async with grpc.aio.secure_channel(server.ready.address, identity.channel_credentials(ours)) as channel:
                stub = CompletionServiceStub(channel)
                assert (await ask(stub, request())).code is code
                if identity is ada:
                    assert (await ask(stub, request(sequence=2), metadata=bearer("ada"))).code is code
    assert len({generation.cache_salt for generation in generations}) == 1, "the same user by key and certificate"
