"""A client that vanishes: nothing comes from it any more, and its connection is not closed."""

import dataclasses

import grpc
import pytest

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_server.engine.scripted.engine import ServiceTimes
from tests.support.fault_proxy import FaultProxy
from tests.support.server import ENDLESS, endless_config, endless_engine, eventually, next_event, request, run_server

FREED_WITHIN_S = 30.0


@pytest.mark.full
async def test_what_a_vanished_client_holds_is_freed() -> None:
    """A proxy swallows all bytes both ways, as a network whose link is down, and acknowledges those of the server."""
    engine = endless_engine(lambda _request: (f" w{i}" for i in range(ENDLESS)), ServiceTimes(decode_base_s=0.1))
    config = endless_config("limits.max_deadline_s=600", "engine.heartbeat_s=0")
    async with (
        run_server(config, lambda: engine) as server,
        FaultProxy(server.ready.address) as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
    ):
        stub = CompletionServiceStub(channel)
        idle, busy = stub.Session(), stub.Session()
        call = stub.Complete(request(max_tokens=ENDLESS, session_id="call"))
        await idle.initial_metadata()
        await busy.write(pb.SessionRequest(complete=request(max_tokens=ENDLESS)))
        await next_event(busy)
        await next_event(call)
        assert server.count("completion_live_sessions") == 2
        assert engine.stats().num_running == 2
        proxy.faults = dataclasses.replace(proxy.faults, black_hole=True)
        await eventually(lambda: server.count("completion_live_sessions") == 0, FREED_WITHIN_S)
        await eventually(lambda: engine.stats().num_running == 0)
        for each in (idle, busy, call):
            each.cancel()
