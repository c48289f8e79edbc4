"""Connections that begin what they never end, on gRPC with and without TLS: others are served, and they end in time."""

from contextlib import AsyncExitStack

import grpc
import pytest

from completion.v1.completion_pb2_grpc import CompletionServiceStub
from loadtest.bench.attacks.attacker import BEGINNINGS
from loadtest.bench.attacks.http2 import held_open
from tests.attack.conftest import engine
from tests.support.certificates import MakeIdentity
from tests.support.server import ask, make_config, request, run_server

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("num", [100, pytest.param(1_000, marks=pytest.mark.large)])
@pytest.mark.parametrize("has_tls", [False, True])
async def test_connections_that_begin_and_never_end_keep_nobody_out(
    num: int, has_tls: bool, make_identity: MakeIdentity
) -> None:
    identity = make_identity("server")
    tls = (f"server.tls.certificate={identity.certificate}", f"server.tls.key={identity.key}") if has_tls else ()
    async with run_server(make_config(*tls), engine) as server, AsyncExitStack() as stack:
        address = server.ready.address
        for number in range(num):
            beginning = BEGINNINGS[number % len(BEGINNINGS)]
            await stack.enter_async_context(held_open(address, beginning))
        trusted = grpc.ssl_channel_credentials(identity.certificate.read_bytes())
        secure = grpc.aio.secure_channel(address, trusted)
        async with secure if has_tls else grpc.aio.insecure_channel(address) as channel:
            assert (await ask(CompletionServiceStub(channel), request())).reason == "stop"
