"""The commands of operators: status, drain and speculation."""

import json
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from client_fakes import Failure, FakeServer, Run, Serve
from grpc_health.v1 import health_pb2

from completion.v1 import admin_pb2
from completion.v1 import admin_pb2 as pb
from completion_server.client.complete_command import complete
from completion_server.client.operator_commands import drain, status
from completion_server.client.speculation_command import speculation
from completion_server.client.top.command import top

READY = admin_pb2.GetStatusResponse(
    version="1.2.3",
    uptime_s=3725,
    engine_state=admin_pb2.ENGINE_STATE_READY,
    model="target",
    model_revision="files-1",
    draft_model="draft",
    draft_model_revision="files-2",
    num_speculative_tokens=4,
    running_requests=2,
    queued_requests=5,
    slots=8,
    ended_requests={"stop": 12, "shed": 1},
)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_status_is_a_small_table_or_an_object(serve: Serve, run: Run) -> None:
    line = 'completion_requests_total{outcome="shed",region="",shed_reason="%s",trigger="%s"} %d.0\n'
    counts = (("rate_limited", "automatic", 3), ("rate_limited", "explicit", 1), ("overload", "prefetch", 2))
    page = "# TYPE completion_requests counter\n" + "".join(line % each for each in counts)
    fake = await serve(FakeServer(status=READY, metrics=page), SERVING)
    result = await run(status, "--admin", fake.address)
    assert result.exit_code == 0
    for part in (
        "SERVING", "ready", "1 h 2 min", "target, revision files-1",
        "draft, revision files-2, up to 4 tokens a step", "2 of 8 slots", "1 shed, 12 stop",
        "2 overload, 4 rate_limited",
    ):  # fmt: skip
        assert part in result.stdout
    answer = json.loads((await run(status, "--admin", fake.address, "--json")).stdout)
    assert (answer["health"], answer["engine_state"], answer["running_requests"]) == ("SERVING", "ready", 2)
    assert answer["ended_requests"] == {"stop": 12, "shed": 1}
    assert answer["shed_requests"] == {"overload": 2, "rate_limited": 4}


async def test_a_host_alone_is_asked_at_the_default_port(run: Run) -> None:
    for command, option, port in ((status, "--admin", 50052), (drain, "--admin", 50052), (complete, "--server", 50051)):
        result = await run(command, *(["-"] if command is complete else []), option, "no-such-host.invalid", input="x")
        assert result.exit_code == 1
        assert f"No server answers at no-such-host.invalid:{port} " in result.stderr


@pytest.mark.parametrize("command", [status, drain])
async def test_the_option_of_other_commands_is_refused_with_the_right_one(run: Run, command: click.Command) -> None:
    result = await run(command, "--server", "127.0.0.1:50051")
    assert result.exit_code == 2
    assert "name the admin listener: --admin HOST[:50052]" in result.stderr


async def test_several_servers_are_shown_with_their_distances(serve: Serve, run: Run) -> None:
    fakes = [await serve(FakeServer(status=READY), SERVING) for _ in range(2)]
    addresses = ",".join(fake.address for fake in fakes)
    shown = await run(status, "--admin", addresses)
    assert shown.exit_code == 0
    assert all(fake.address in shown.stdout for fake in fakes)
    assert shown.stdout.count("round trip") == 2
    result = await run(status, "--admin", f"127.0.0.1:1,{addresses}", "--json")
    assert result.exit_code == 1  # one of them can't be reached
    assert "No server answers at 127.0.0.1:1" in result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["server"] for each in found] == [fake.address for fake in fakes]
    assert all(0 < each["round_trip_ms"] < 5000 for each in found)


def shared_status(**fields: object) -> admin_pb2.GetStatusResponse:
    """Return the status of a server that shares a Redis."""
    found = admin_pb2.GetStatusResponse()
    found.CopyFrom(READY)
    found.replication.replica_id = "left"
    found.replication.redis_available = True
    found.replication.messages_received = 5
    found.cache.entries, found.cache.bytes = 3, 2**20
    found.cache.local_hits, found.cache.shared_hits, found.cache.misses = 3, 1, 4
    for name, value in fields.items():
        setattr(found.replication, name, value)
    return found


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"redis_outages": 2, "listening": True},
         ("available, 2 outages", "replica left", "lanes 5 messages of other replicas",
          "3 completions, 1.0 MiB; answered 50% of 8 lookups: 3 here, 1 from Redis")),
        ({"redis_available": False, "redis_failure": "TimeoutError"},
         ("away: TimeoutError", "not listening, 5 messages")),
    ],
    ids=["shared", "alone"],
)  # fmt: skip
async def test_status_shows_what_replicas_share(
    serve: Serve, run: Run, fields: dict[str, object], parts: tuple[str, ...]
) -> None:
    fake = await serve(FakeServer(status=shared_status(**fields)), SERVING)
    result = await run(status, "--admin", fake.address)
    assert result.exit_code == 0  # it serves, whatever becomes of Redis
    assert all(part in " ".join(result.stdout.split()) for part in parts)


async def test_shared_state_for_machines(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=shared_status()), SERVING)
    answer = json.loads((await run(status, "--admin", fake.address, "--json")).stdout)
    assert answer["cache"] == {"entries": 3, "bytes": 2**20, "local_hits": 3, "shared_hits": 1, "misses": 4}
    assert answer["replication"]["replica_id"] == "left"
    assert answer["replication"]["redis_outages"] == 0


@pytest.mark.parametrize(
    ("answer", "health_status", "health"),
    [
        (READY, NOT_SERVING, "NOT_SERVING"),
        # Without health checks the health is that of the status.
        (READY, None, "SERVING"),
        (admin_pb2.GetStatusResponse(engine_state=admin_pb2.ENGINE_STATE_STARTING), None, "NOT_SERVING"),
        (admin_pb2.GetStatusResponse(engine_state=admin_pb2.ENGINE_STATE_READY, draining=True), None, "NOT_SERVING"),
    ],
)
async def test_status_ends_with_1_where_the_server_does_not_serve(
    serve: Serve, run: Run, answer: admin_pb2.GetStatusResponse, health_status: Any, health: str
) -> None:
    fake = await serve(FakeServer(status=answer), health_status)
    result = await run(status, "--admin", fake.address, "--json")
    assert (json.loads(result.stdout)["health"], result.exit_code) == (health, int(health != "SERVING"))


async def test_fewer_slots_than_configured_have_a_reason(serve: Serve, run: Run) -> None:
    few = admin_pb2.GetStatusResponse(slots=8, max_slots=32, slots_reason="begins low")
    fake = await serve(FakeServer(status=few))
    result = await run(status, "--admin", fake.address)
    assert "8 of scheduling.max_slots = 32: begins low" in result.stdout
    plain = await run(status, "--admin", (await serve(FakeServer(status=READY))).address)
    assert "max_slots" not in plain.stdout


async def test_a_status_that_can_not_be_had_is_explained(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(failure=Failure(grpc.StatusCode.PERMISSION_DENIED, "operators only")))
    for address, reason in ((fake.address, "operators only"), ("127.0.0.1:1", "No server answers at 127.0.0.1:1")):
        result = await run(status, env={"COMPLETION_SERVER_ADMIN_ADDRESS": address})
        assert result.exit_code == 1
        assert reason in result.stderr


@pytest.mark.parametrize(("options", "grace_ms"), [((), None), (("--grace-ms", "2000"), 2000)])
async def test_drain_reports_the_open_requests(
    serve: Serve, run: Run, options: tuple[str, ...], grace_ms: int | None
) -> None:
    fake = await serve()
    result = await run(drain, "--admin", fake.address, *options)
    assert result.exit_code == 0
    assert "requests still to finish: 3" in result.stdout
    assert fake.drains == [admin_pb2.DrainRequest(grace_ms=grace_ms)]


SCHEDULE = [
    pb.SpeculationRow(first_batch_size=1, last_batch_size=4, num_speculative_tokens=4),
    pb.SpeculationRow(first_batch_size=5, last_batch_size=64, num_speculative_tokens=0),
]
IN_FORCE = pb.GetSpeculationResponse(
    schedule=SCHEDULE,
    max_num_speculative_tokens=5,
    since_unix_ms=1_800_000_000_000,
    mode=pb.SPECULATION_MODE_AUTO,
    by="ada@host",
    table=SCHEDULE[:1],
    figures=pb.SpeculationFigures(
        window_s=300,
        generated_tokens=1200,
        drafted_tokens=1000,
        accepted_tokens=600,
        wasted_tokens=400,
        acceptance=0.6,
        acceptance_by_position=[0.8, 0.4],
        mean_accepted_length=2.2,
        tokens_per_s=4.0,
    ),
)


async def test_get_is_a_small_table_or_an_object(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(speculation=IN_FORCE))
    result = await run(speculation, "get", "--admin", fake.address, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for part in (
        "K=4 for batch 1 to 4, K=0 for batch 5 and more; 5 at most", "ada@host, auto", "2027-01-15",
        "60% (80%, 40% by position), 2.20 tokens a step", "1000 drafted, 400 of them wasted",
        "4.0 tokens/s over the last 300 s", "falls back to",
    ):  # fmt: skip
        assert part in result.stdout
    answer = json.loads((await run(speculation, "get", "--admin", fake.address, "--json")).stdout)
    assert (answer["schedule"], answer["table"]) == ([[1, 4, 4], [5, 64, 0]], [[1, 4, 4]])
    assert (answer["mode"], answer["since_unix_ms"]) == ("auto", 1_800_000_000_000)
    assert answer["figures"]["drafted_tokens"] == 1000
    assert answer["figures"]["acceptance_by_position"] == [0.8, 0.4]
    fake.speculation = pb.GetSpeculationResponse(fixed_because="no draft model", mode=1)
    fixed = await run(speculation, "get", "--admin", fake.address)
    assert "no draft model" in fixed.stdout
    assert "nothing drafted" in fixed.stdout


async def test_set_one_k(serve: Serve, run: Run) -> None:
    fake = await serve()
    result = await run(speculation, "set", "--k", "0", "--admin", fake.address)
    assert result.exit_code == 0, result.output
    assert "fixed: K=0 for any batch" in result.stdout
    asked = fake.speculation_set[0]
    assert (asked.mode, asked.HasField("num_speculative_tokens")) == (pb.SPECULATION_MODE_FIXED, True)
    assert "@" in asked.by


@pytest.mark.parametrize("content", ["[[1, 4, 4], [5, 64, 0]]", '{"schedule": [[1, 4, 4], [5, 64, 0]], "why": "x"}'])
async def test_set_a_schedule(serve: Serve, run: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(content)
    fake = await serve()
    result = await run(speculation, "set", "--schedule", str(file), "--json", "--admin", fake.address)
    assert result.exit_code == 0, result.output
    assert list(fake.speculation_set[0].schedule) == SCHEDULE
    assert json.loads(result.stdout) == {
        "schedule": [[1, 4, 4], [5, 64, 0]],
        "mode": "schedule",
        "since_unix_ms": 1_800_000_000_000,
    }


async def test_set_auto(serve: Serve, run: Run) -> None:
    fake = await serve()
    assert (await run(speculation, "set", "--auto", "--admin", fake.address)).exit_code == 0
    assert fake.speculation_set[0].mode == pb.SPECULATION_MODE_AUTO


NO_ROWS = "must hold rows of [first, last, K]"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        *((content, NO_ROWS) for content in ("[[1, 4]]", "{}", "[[1, 4, -1]]", "nonsense", "7", '[[1, 4, "x"]]')),
        ('{"schedule": [[1, 4, 4]], "valid": false}', "the tuning that wrote it is invalid"),
    ],
)
async def test_a_file_without_a_schedule_is_refused(run: Run, tmp_path: Path, content: str, fault: str) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(content)
    result = await run(speculation, "set", "--schedule", str(file))
    assert result.exit_code == 2
    assert fault in result.stderr


@pytest.mark.parametrize("options", [(), ("--k", "1", "--auto"), ("--k", "-1")])
async def test_set_takes_one_thing(run: Run, options: tuple[str, ...]) -> None:
    assert (await run(speculation, "set", *options)).exit_code == 2


async def test_a_refusal_is_explained(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(failure=Failure(grpc.StatusCode.INVALID_ARGUMENT, "schedule[1]: leaves a gap")))
    result = await run(speculation, "set", "--auto", "--admin", fake.address)
    assert result.exit_code == 1
    assert "schedule[1]: leaves a gap" in result.stderr


async def test_commands_present_the_token(serve: Serve, run: Run, tmp_path: Path) -> None:
    fake = await serve(FakeServer(status=READY), SERVING)
    file = tmp_path / "token"
    file.write_text("tok\n")
    ways: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
        (("--token-file", str(file)), {}),
        (("--token-command", f"cat {file}"), {}),
        ((), {"COMPLETION_TOKEN": "tok"}),
        (("--token-file", str(file)), {"COMPLETION_TOKEN": "other"}),
    )
    for options, variables in ways:
        for command in (("-",), ("status",), ("top", "--once", "--interval", "0.2")):
            named = {"-": complete, "status": status, "top": top}[command[0]]
            address = ("--server" if named is complete else "--admin", fake.address)
            arguments = command if named is complete else command[1:]
            fake.metadata.clear()
            result = await run(named, *arguments, *address, *options, env=variables, input="x = ")
            assert result.exit_code == 0, result.output
            assert {each.get("authorization") for each in fake.metadata} == {"Bearer tok"}
    fake.metadata.clear()
    await run(status, "--admin", fake.address, env={"COMPLETION_TOKEN": ""})
    assert "authorization" not in fake.metadata[0]


async def test_a_refused_or_missing_token_is_explained(serve: Serve, run: Run, tmp_path: Path) -> None:
    fake = await serve(FakeServer(failure=Failure(grpc.StatusCode.UNAUTHENTICATED, "key k1 is revoked")))
    (tmp_path / "token").write_text("secret-tok")
    file = ("--token-file", str(tmp_path / "token"))
    for named, arguments in ((status, ()), (top, ("--once", "--interval", "0.2")), (complete, ("-",))):
        address = ("--server" if named is complete else "--admin", fake.address)
        without = await run(named, *arguments, *address, input="x = ")
        refused = await run(named, *arguments, *address, *file, input="x = ")
        assert (without.exit_code, refused.exit_code) == (1, 1)
        said = " ".join(without.output.split())
        assert f"The server at {fake.address} wants a token: key k1 is revoked. Give one with --token-file FILE" in said
        said = " ".join(refused.output.split())
        assert f"the server refused the token of the file {file[1]}: key k1 is revoked" in said
        assert "secret-tok" not in refused.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--token-file", "/nowhere/token"), "there is no token to send: the file /nowhere/token: it can't be read"),
        (("--token-command", "false"), "there is no token to send: the command false: it ended with status 1"),
        (("--token-command", "vault 'read"), "--token-command: no closing quotation"),
        (("--token-file", "x", "--token-command", "y"), "give --token-file or --token-command, not both"),
        (("--token-command", "echo x", "--admin", "example.com"), "is not sent to example.com:50052 without TLS"),
    ],
)
async def test_a_token_that_cannot_be_used_is_said_before_anything_is_sent(
    run: Run, options: tuple[str, ...], said: str
) -> None:
    result = await run(status, *options)
    assert result.exit_code == 2
    assert said in result.stderr
