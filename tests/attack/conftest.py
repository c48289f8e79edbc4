"""A server with a quick scripted engine, and a connection to it without the checks of a gRPC library."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from loadtest.bench.attacks.http2 import ATTACKER, Http2Connection
from tests.support.server import RunningServer, make_config, run_server

MIB = 1024 * 1024


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _request: ("alpha", " beta", "\n"), ServiceTimes(decode_base_s=0.001))


@asynccontextmanager
async def attacked(*overrides: str, source: str = ATTACKER) -> AsyncIterator[tuple[RunningServer, Http2Connection]]:
    """Run a server and connect to it."""
    async with (
        run_server(make_config(*overrides), engine) as server,
        await Http2Connection.open(server.ready.address, source) as connection,
    ):
        yield server, connection
