import grpc
import pytest

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.scripted import letters
from tests.support.server import ask, make_config, request, run_server

FAST = ServiceTimes(0.001, 0.0, 0.001, 0.0, 0.0, 0.0)


async def test_the_admin_listener_shows_chosen_metrics_of_this_server() -> None:
    config = make_config("server.region=us-east", "server.metrics_listen=")
    async with run_server(config, lambda: ScriptedEngine(letters, FAST)) as server:
        await ask(server.stub, request(max_tokens=4))
        async with grpc.aio.insecure_channel(server.ready.admin_address) as channel:
            stub = AdminServiceStub(channel)
            chosen = await stub.GetMetrics(admin_pb2.GetMetricsRequest(names=["completion_requests"]), timeout=10)
            everything = await stub.GetMetrics(admin_pb2.GetMetricsRequest(), timeout=10)
            status = await stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=10)
    line = 'completion_requests_total{outcome="length",region="us-east",shed_reason="",trigger="automatic"} 1.0'
    assert line in chosen.text
    assert "completion_stage_seconds" not in chosen.text
    assert 'completion_stage_seconds_bucket{le="0.2",region="us-east",stage="total"} 1.0' in everything.text
    assert 0 < chosen.uptime_s <= everything.uptime_s <= status.uptime_s


async def test_the_editors_listener_does_not_offer_metrics() -> None:
    async with run_server(make_config(), lambda: ScriptedEngine(letters, FAST)) as server:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await AdminServiceStub(server.channel).GetMetrics(admin_pb2.GetMetricsRequest(), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
