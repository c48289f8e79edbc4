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


async def test_several_servers_are_shown_with_their_distances(serve: Serve, run: Run) -> None:
    fakes = [await serve(FakeServer(status=READY), SERVING) for _ in range(2)]
    addresses = ",".join(fake.address for fake in fakes)
    shown = await run(status, "--admin", addresses)
    assert shown.exit_code == 0
    assert all(fake.address in shown.stdout for fake in fakes)
    assert shown.stdout.count("round trip") == 2
    lines = (await run(status, "--admin", f"{addresses},127.0.0.1:1", "--json")).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["server"] for each in found] == [fake.address for fake in fakes]
    assert all(0 < each["round_trip_ms"] < 5000 for each in found)


async def test_status_ends_with_1_where_one_of_several_can_not_be_reached(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=READY), SERVING)
    result = await run(status, "--admin", f"127.0.0.1:1,{fake.address}")
    assert result.exit_code == 1
    assert "No server answers at 127.0.0.1:1" in result.stderr
    assert fake.address in result.stdout


def shared_status(**fields: object) -> admin_pb2.GetStatusResponse:
    """Return the status of a server that shares a Redis with another one, which is silent."""
    found = admin_pb2.GetStatusResponse()
    found.CopyFrom(READY)
    found.replication.replica_id = "left"
    found.replication.redis_available = True
    found.replication.clock_error_ms = 0.25
    found.replication.limits_phase = admin_pb2.LIMITS_PHASE_SHARED
    found.replication.replicas.add(replica_id="left", alive=True)
    found.replication.replicas.add(replica_id="right", age_ms=9_000)
    found.cache.entries, found.cache.bytes = 3, 2**20
    found.cache.local_hits, found.cache.shared_hits, found.cache.misses = 3, 1, 4
    for name, value in fields.items():
        setattr(found.replication, name, value)
    return found


async def test_status_shows_what_replicas_share(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=shared_status(redis_outages=2)), SERVING)
    shown = " ".join((await run(status, "--admin", fake.address)).stdout.split())
    for part in (
        "available, 2 outages", "1 alive (left, right silent for 9 s); this one is left", "leased from Redis",
        "clock error 0.25 ms", "3 completions, 1.0 MiB; answered 50% of 8 lookups: 3 here, 1 from Redis",
    ):  # fmt: skip
        assert part in shown


async def test_status_says_why_redis_is_away(serve: Serve, run: Run) -> None:
    alone = admin_pb2.LIMITS_PHASE_ALONE
    away = shared_status(redis_available=False, redis_failure="TimeoutError", limits_phase=alone, clock_error_ms=-1.0)
    fake = await serve(FakeServer(status=away), SERVING)
    result = await run(status, "--admin", fake.address)
    shown = " ".join(result.stdout.split())
    assert result.exit_code == 0  # it serves
    for part in ("away: TimeoutError", "this replica's share", "not known yet"):
        assert part in shown


@pytest.mark.parametrize(("phase", "shown"), [("WAITING", "what this replica holds"), ("SHARED", "leased")])
async def test_status_says_how_limits_are_decided(serve: Serve, run: Run, phase: str, shown: str) -> None:
    value = admin_pb2.LimitsPhase.Value(f"LIMITS_PHASE_{phase}")
    fake = await serve(FakeServer(status=shared_status(limits_phase=value)), SERVING)
    assert f"limits {shown}" in " ".join((await run(status, "--admin", fake.address)).stdout.split())


async def test_status_shows_that_another_process_has_the_same_id(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=shared_status(replica_id_duplicate=True)), SERVING)
    assert "another process is left, too" in " ".join((await run(status, "--admin", fake.address)).stdout.split())


async def test_shared_state_for_machines(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=shared_status()), SERVING)
    answer = json.loads((await run(status, "--admin", fake.address, "--json")).stdout)
    assert answer["cache"] == {"entries": 3, "bytes": 2**20, "local_hits": 3, "shared_hits": 1, "misses": 4}
    assert [each["replica_id"] for each in answer["replication"]["replicas"]] == ["left", "right"]
    assert answer["replication"]["redis_outages"] == 0


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


async def test_fewer_slots_than_configured_have_a_reason(serve: Serve, run: Run) -> None:
    few = admin_pb2.GetStatusResponse(slots=8, max_slots=32, slots_reason="begins low")
    fake = await serve(FakeServer(status=few))
    result = await run(status, "--admin", fake.address)
    assert "8 of scheduling.max_slots = 32: begins low" in result.stdout
    plain = await run(status, "--admin", (await serve(FakeServer(status=READY))).address)
    assert "max_slots" not in plain.stdout


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
