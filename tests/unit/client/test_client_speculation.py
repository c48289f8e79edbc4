import json
from pathlib import Path

import grpc
import pytest
from client_fakes import Failure, FakeServer, Run, Serve

from completion.v1 import admin_pb2 as pb
from completion_server.client.speculation_command import speculation

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


async def test_get_is_a_small_table(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(speculation=IN_FORCE))
    result = await run(speculation, "get", "--admin", fake.address, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for part in (
        "K=4 for batch 1 to 4, K=0 for batch 5 and more; 5 at most", "ada@host, auto", "2027-01-15",
        "60% (80%, 40% by position), 2.20 tokens a step", "1000 drafted, 400 of them wasted",
        "4.0 tokens/s over the last 300 s", "falls back to",
    ):  # fmt: skip
        assert part in result.stdout


async def test_get_says_why_nothing_can_be_changed(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(speculation=pb.GetSpeculationResponse(fixed_because="no draft model", mode=1)))
    result = await run(speculation, "get", "--admin", fake.address)
    assert "no draft model" in result.stdout
    assert "nothing drafted" in result.stdout


async def test_get_for_machines(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(speculation=IN_FORCE))
    answer = json.loads((await run(speculation, "get", "--admin", fake.address, "--json")).stdout)
    assert (answer["schedule"], answer["table"]) == ([[1, 4, 4], [5, 64, 0]], [[1, 4, 4]])
    assert (answer["mode"], answer["since_unix_ms"]) == ("auto", 1_800_000_000_000)
    assert answer["figures"]["drafted_tokens"] == 1000
    assert answer["figures"]["acceptance_by_position"] == [0.8, 0.4]


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


@pytest.mark.parametrize("content", ["[[1, 4]]", "{}", "[[1, 4, -1]]", "nonsense", "7", '[[1, 4, "x"]]'])
async def test_a_file_without_a_schedule_is_refused(run: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(content)
    result = await run(speculation, "set", "--schedule", str(file))
    assert result.exit_code == 2
    assert "must hold rows of [first, last, K]" in result.stderr


@pytest.mark.parametrize("options", [(), ("--k", "1", "--auto"), ("--k", "-1")])
async def test_set_takes_one_thing(run: Run, options: tuple[str, ...]) -> None:
    assert (await run(speculation, "set", *options)).exit_code == 2


async def test_a_refusal_is_explained(serve: Serve, run: Run) -> None:
    fake = await serve(FakeServer(failure=Failure(grpc.StatusCode.INVALID_ARGUMENT, "schedule[1]: leaves a gap")))
    result = await run(speculation, "set", "--auto", "--admin", fake.address)
    assert result.exit_code == 1
    assert "schedule[1]: leaves a gap" in result.stderr
