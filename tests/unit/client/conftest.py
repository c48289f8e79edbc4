"""Starts fake servers, and runs commands against them."""

import asyncio
from collections.abc import AsyncIterator

import click
import grpc
import pytest
from click.testing import CliRunner, Result
from client_fakes import FakeServer, Run, Serve
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from completion.v1.admin_pb2_grpc import add_AdminServiceServicer_to_server
from completion.v1.completion_pb2_grpc import add_CompletionServiceServicer_to_server


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start fake servers; with `health`, they also answer health checks with that status."""
    running: list[grpc.aio.Server] = []

    async def start(
        fake: FakeServer | None = None,
        health_status: health_pb2.HealthCheckResponse.ServingStatus | None = None,
        credentials: grpc.ServerCredentials | None = None,
        address: str = "127.0.0.1:0",
    ) -> FakeServer:
        fake = fake or FakeServer()
        server = grpc.aio.server()
        add_CompletionServiceServicer_to_server(fake, server)
        add_AdminServiceServicer_to_server(fake, server)
        if health_status is not None:
            servicer = health.aio.HealthServicer()
            await servicer.set("", health_status)
            health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        await server.start()
        running.append(server)
        fake.address = address.replace(":0", f":{port}") if address.endswith(":0") else address
        return fake

    yield start
    for server in running:
        await server.stop(0)


@pytest.fixture
def run() -> Run:
    """Run a command in a thread of its own, so that the fake server's loop goes on."""

    async def invoke(command: click.Command, *arguments: str, **settings: object) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, command, list(arguments), **settings)

    return invoke
