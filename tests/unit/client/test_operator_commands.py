"""The commands of operators: status, drain and speculation, and the token of all commands."""

import json
from pathlib import Path
from typing import Any

import click
import grpc
import pytest
from client_fakes import NOT_SERVING, SERVING, Failure, FakeServer, Run, Serve

from completion.v1 import admin_pb2 as pb
from completion_server.client.complete_command import complete
from completion_server.client.operator_commands import drain, status
from completion_server.client.speculation_command import speculation
from completion_server.client.top.command import top

READY = pb.GetStatusResponse(
    version="1.2.3",
    uptime_s=3725,
    engine_state=pb.ENGINE_STATE_READY,
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
AT = {complete: ("-", "--server"), status: ("--admin",), drain: ("--admin",)}
AT[top] = ("--once", "--interval", "0.2", "--admin")


def ready(**fields: Any) -> pb.GetStatusResponse:
    found = pb.GetStatusResponse(**fields)
    merged = pb.GetStatusResponse()
    merged.CopyFrom(READY)
    merged.MergeFrom(found)
    return merged


def shared(**fields: Any) -> pb.GetStatusResponse:
    """Return the status of a server that shares a Redis."""
    replication = {"replica_id": "left", "redis_available": True, "messages_received": 5} | fields
    cache = pb.CacheStatus(entries=3, bytes=2**20, local_hits=3, shared_hits=1, misses=4)
    return ready(replication=pb.ReplicationStatus(**replication), cache=cache)


def metrics_page() -> str:
    line = 'completion_requests_total{outcome="shed",region="",shed_reason="%s",trigger="%s"} %d.0\n'
    counts = (("rate_limited", "automatic", 3), ("rate_limited", "explicit", 1), ("overload", "prefetch", 2))
    return "# TYPE completion_requests counter\n" + "".join(line % each for each in counts)


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (READY, ("SERVING", "ready", "1 h 2 min", "target, revision files-1", "2 of 8 slots", "1 shed, 12 stop",
                 "draft, revision files-2, up to 4 tokens a step", "2 overload, 4 rate_limited")),
        (shared(redis_outages=2, listening=True),
         ("available, 2 outages", "replica left", "lanes 5 messages of other replicas",
          "3 completions, 1.0 MiB; answered 50% of 8 lookups: 3 here, 1 from Redis")),
        (shared(redis_available=False, redis_failure="TimeoutError"),
         ("away: TimeoutError", "not listening, 5 messages")),
        (ready(max_slots=32, slots_reason="begins low"), ("8 of scheduling.max_slots = 32: begins low",)),
    ],
    ids=["alone", "shared", "without redis", "few slots"],
)  # fmt: skip
async def test_status_is_a_small_table(
    serve: Serve, run: Run, answer: pb.GetStatusResponse, parts: tuple[str, ...]
) -> None:
    fake = await serve(FakeServer(status=answer, metrics=metrics_page()), SERVING)
    result = await run(status, "--admin", fake.address)
    assert result.exit_code == 0  # it serves, whatever becomes of Redis
    shown = " ".join(result.stdout.split())
    assert [part for part in parts if part not in shown] == []
    assert ("max_slots" in shown) == bool(answer.slots_reason)


async def test_status_for_machines(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(status=shared(), metrics=metrics_page()), SERVING)
    answer = json.loads((await run(status, "--admin", fake.address, "--json")).stdout)
    assert (answer["health"], answer["engine_state"], answer["running_requests"]) == ("SERVING", "ready", 2)
    assert answer["ended_requests"] == {"stop": 12, "shed": 1}
    assert answer["shed_requests"] == {"overload": 2, "rate_limited": 4}
    assert answer["cache"] == {"entries": 3, "bytes": 2**20, "local_hits": 3, "shared_hits": 1, "misses": 4}
    assert (answer["replication"]["replica_id"], answer["replication"]["redis_outages"]) == ("left", 0)


async def test_several_servers_are_shown_with_their_distances(serve: Serve, run: Run) -> None:
    fakes = [await serve(FakeServer(status=READY), SERVING) for _ in range(2)]
    addresses = ",".join(fake.address for fake in fakes)
    shown = await run(status, "--admin", addresses)
    assert (shown.exit_code, shown.stdout.count("round trip")) == (0, 2)
    result = await run(status, "--admin", f"127.0.0.1:1,{addresses}", "--json")
    assert result.exit_code == 1  # one of them can't be reached
    assert "No server answers at 127.0.0.1:1" in result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["server"] for each in found] == [fake.address for fake in fakes]
    assert all(0 < each["round_trip_ms"] < 5000 for each in found)


@pytest.mark.parametrize(
    ("answer", "health_status", "health"),
    [
        (READY, NOT_SERVING, "NOT_SERVING"),
        # Without health checks the health is that of the status.
        (READY, None, "SERVING"),
        (pb.GetStatusResponse(engine_state=pb.ENGINE_STATE_STARTING), None, "NOT_SERVING"),
        (pb.GetStatusResponse(engine_state=pb.ENGINE_STATE_READY, draining=True), None, "NOT_SERVING"),
    ],
)
async def test_status_ends_with_1_where_the_server_does_not_serve(
    serve: Serve, run: Run, answer: pb.GetStatusResponse, health_status: Any, health: str
) -> None:
    fake = await serve(FakeServer(status=answer), health_status)
    result = await run(status, "--admin", fake.address, "--json")
    assert (json.loads(result.stdout)["health"], result.exit_code) == (health, int(health != "SERVING"))


@pytest.mark.parametrize(("command", "port"), [(status, 50052), (drain, 50052), (complete, 50051)])
async def test_a_host_alone_is_asked_at_the_default_port(run: Run, command: click.Command, port: int) -> None:
    result = await run(command, *AT[command], "no-such-host.invalid", input="x")
    assert result.exit_code == 1
    assert f"No server answers at no-such-host.invalid:{port} " in result.stderr


@pytest.mark.parametrize("command", [status, drain])
async def test_the_option_of_other_commands_is_refused_with_the_right_one(run: Run, command: click.Command) -> None:
    result = await run(command, "--server", "127.0.0.1:50051")
    assert result.exit_code == 2
    assert "name the admin listener: --admin HOST[:50052]" in result.stderr


async def test_refusals_are_explained(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(failure=Failure(grpc.StatusCode.INVALID_ARGUMENT, "operators only")))
    for command, arguments in ((status, ()), (speculation, ("set", "--auto"))):
        result = await run(command, *arguments, env={"COMPLETION_SERVER_ADMIN_ADDRESS": fake.address})
        assert result.exit_code == 1
        assert "operators only" in result.stderr


@pytest.mark.parametrize(("options", "grace_ms"), [((), None), (("--grace-ms", "2000"), 2000)])
async def test_drain_reports_the_open_requests(
    serve: Serve, run: Run, options: tuple[str, ...], grace_ms: int | None
) -> None:
    fake = await serve()
    result = await run(drain, "--admin", fake.address, *options)
    assert result.exit_code == 0
    assert "requests still to finish: 3" in result.stdout
    assert fake.requests == [pb.DrainRequest(grace_ms=grace_ms)]


SCHEDULE = [
    pb.SpeculationRow(first_batch_size=1, last_batch_size=4, num_speculative_tokens=4),
    pb.SpeculationRow(first_batch_size=5, last_batch_size=64, num_speculative_tokens=0),
]
FIGURES = pb.SpeculationFigures(
    window_s=300,
    drafted_tokens=1000,
    wasted_tokens=400,
    acceptance=0.6,
    acceptance_by_position=[0.8, 0.4],
    mean_accepted_length=2.2,
    tokens_per_s=4.0,
)
ACTIVE = pb.GetSpeculationResponse(
    schedule=SCHEDULE,
    max_num_speculative_tokens=5,
    since_unix_ms=1_800_000_000_000,
    mode=pb.SPECULATION_MODE_AUTO,
    by="ada@host",
    table=SCHEDULE[:1],
    figures=FIGURES,
)


async def test_speculation_get_is_a_small_table_or_an_object(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(speculation=ACTIVE))
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
    assert (answer["figures"]["drafted_tokens"], answer["figures"]["acceptance_by_position"]) == (1000, [0.8, 0.4])
    fake.speculation = pb.GetSpeculationResponse(fixed_because="no draft model", mode=1)
    fixed = await run(speculation, "get", "--admin", fake.address)
    assert "no draft model" in fixed.stdout
    assert "nothing drafted" in fixed.stdout


ROWS = "[[1, 4, 4], [5, 64, 0]]"


@pytest.mark.parametrize(
    ("options", "content", "mode", "said"),
    [
        (("--k", "0"), "", pb.SPECULATION_MODE_FIXED, "fixed: K=0 for any batch"),
        (("--auto",), "", pb.SPECULATION_MODE_AUTO, "auto: "),
        (("--schedule",), ROWS, pb.SPECULATION_MODE_SCHEDULE, "schedule: K=4 for batch 1 to 4"),
        (("--schedule",), f'{{"schedule": {ROWS}, "why": "x"}}', pb.SPECULATION_MODE_SCHEDULE, "schedule: K=4"),
    ],
)
async def test_speculation_set(
    serve: Serve, run: Run, tmp_path: Path, options: tuple[str, ...], content: str, mode: int, said: str
) -> None:
    file, fake = tmp_path / "schedule.json", await serve()
    file.write_text(content)
    typed = ("set", *options, *([str(file)] if content else []), "--admin", fake.address)
    result = await run(speculation, *typed)
    assert (result.exit_code, said in result.stdout) == (0, True), result.output
    (asked,) = fake.requests
    assert (asked.mode, asked.HasField("num_speculative_tokens")) == (mode, mode == pb.SPECULATION_MODE_FIXED)
    assert list(asked.schedule) == (SCHEDULE if content else [])
    assert "@" in asked.by
    answer = json.loads((await run(speculation, *typed, "--json")).stdout)
    assert (answer["mode"], answer["since_unix_ms"]) == (said.partition(":")[0], 1_800_000_000_000)
    assert not content or answer["schedule"] == json.loads(ROWS)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        *((content, "must hold rows") for content in ("[[1, 4]]", "{}", "[[1, 4, -1]]", "x", "7", '[[1, 4, "x"]]')),
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


@pytest.mark.parametrize("command", [complete, status, top])
async def test_commands_present_the_token_and_explain_a_refusal(
    serve: Serve, run: Run, tmp_path: Path, command: click.Command
) -> None:
    fake = await serve(FakeServer(status=READY, metrics=""), SERVING)
    file = tmp_path / "token"
    file.write_text("secret-tok\n")
    ways: tuple[tuple[tuple[str, ...], str], ...] = (
        (("--token-file", str(file)), ""),
        (("--token-command", f"cat {file}"), ""),
        ((), "secret-tok"),
        (("--token-file", str(file)), "other"),
    )
    for options, variable in ways:
        fake.metadata.clear()
        env = {"COMPLETION_TOKEN": variable}
        result = await run(command, *AT[command], fake.address, *options, env=env, input="x = ")
        assert result.exit_code == 0, result.output
        assert {each.get("authorization") for each in fake.metadata} == {"Bearer secret-tok"}
    fake.failure = Failure(grpc.StatusCode.UNAUTHENTICATED, "key k1 is revoked")
    for options, said in (
        ((), f"The server at {fake.address} wants a token: key k1 is revoked. Give one with --token-file FILE"),
        (ways[0][0], f"the server refused the token of the file {file}: key k1 is revoked"),
    ):
        refused = await run(command, *AT[command], fake.address, *options, input="x = ")
        assert refused.exit_code == 1
        assert said in " ".join(refused.output.split())
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
