import json

import grpc
import pytest
from client_fakes import Failure, FakeServer, Run, Serve
from grpc_health.v1 import health_pb2

from completion.v1 import admin_pb2
from completion_server.client.operator_commands import drain, status

READY = admin_pb2.GetStatusResponse(
    version="1.2.3",
    uptime_s=3725,
    engine_state=admin_pb2.ENGINE_STATE_READY,
    model="target",
    draft_model="draft",
    num_speculative_tokens=4,
    running_requests=2,
    queued_requests=5,
    slots=8,
    ended_requests={"stop": 12, "shed": 1},
)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_status_is_a_small_table(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=READY), SERVING)
    result = await run(status, "--admin", fake.address)
    assert result.exit_code == 0
    for part in ("SERVING", "ready", "1 h 2 min", "target", "up to 4 tokens a step", "2 of 8 slots", "1 shed, 12 stop"):
        assert part in result.stdout


async def test_status_for_machines(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=READY), SERVING)
    answer = json.loads((await run(status, "--admin", fake.address, "--json")).stdout)
    assert (answer["health"], answer["engine_state"], answer["running_requests"]) == ("SERVING", "ready", 2)
    assert answer["ended_requests"] == {"stop": 12, "shed": 1}


async def test_status_ends_with_1_where_the_server_does_not_serve(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=READY), NOT_SERVING)
    result = await run(status, "--admin", fake.address)
    assert result.exit_code == 1
    assert "NOT_SERVING" in result.stdout


@pytest.mark.parametrize(
    ("answer", "health", "exit_code"),
    [
        (READY, "SERVING", 0),
        (admin_pb2.GetStatusResponse(engine_state=admin_pb2.ENGINE_STATE_STARTING), "NOT_SERVING", 1),
        (admin_pb2.GetStatusResponse(engine_state=admin_pb2.ENGINE_STATE_READY, draining=True), "NOT_SERVING", 1),
    ],
)
async def test_without_health_checks_the_health_is_that_of_the_status(
    serve: Serve, run: Run, answer: admin_pb2.GetStatusResponse, health: str, exit_code: int
) -> None:
    fake = await serve(FakeServer(status=answer))
    result = await run(status, "--admin", fake.address, "--json")
    assert (json.loads(result.stdout)["health"], result.exit_code) == (health, exit_code)


async def test_a_refused_status_is_explained(serve: Serve, run: Run) -> None:
    refusal = Failure(grpc.StatusCode.PERMISSION_DENIED, "operators only")
    fake = await serve(FakeServer(failure=refusal))
    result = await run(status, "--admin", fake.address)
    assert result.exit_code == 1
    assert "operators only" in result.stderr


async def test_status_without_a_server(run: Run) -> None:
    result = await run(status, env={"COMPLETION_SERVER_ADMIN_ADDRESS": "127.0.0.1:1"})
    assert result.exit_code == 1
    assert "No server answers at 127.0.0.1:1" in result.stderr


@pytest.mark.parametrize(("options", "grace_ms"), [((), None), (("--grace-ms", "2000"), 2000)])
async def test_drain_reports_the_open_requests(
    serve: Serve, run: Run, options: tuple[str, ...], grace_ms: int | None
) -> None:
    fake = await serve()
    result = await run(drain, "--admin", fake.address, *options)
    assert result.exit_code == 0
    assert "requests still to finish: 3" in result.stdout
    assert fake.drains == [admin_pb2.DrainRequest(grace_ms=grace_ms)]
