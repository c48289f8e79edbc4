"""The command profile: the stages of requests, where they are asked for, and what is printed."""

import json
import math
from itertools import islice
from pathlib import Path

import pytest
from client_fakes import GOOD_ANSWER, FakeServer, Run, Serve, end

from completion.v1 import completion_pb2 as pb
from completion_client import Completion
from completion_server.client.profile_command import percentiles, profile, samples, stage_times_ms, standard_library

STAGES = ["network", "admission", "queue", "tokenise", "prefill", "first decode", "decode"]


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        ({"queue_ms": 1, "tokenise_ms": 2, "prefill_ms": 4, "decode_ms": 8, "total_ms": 16}, (4, 1, 1, 2, 4, 2, 6)),
        ({"decode_ms": 1, "total_ms": 20}, (0, 19, 0, 0, 0, 1, 0)),  # the first decode step is at most the decode
    ],
)
def test_a_request_s_stages_add_up_to_its_time(timings: dict[str, float], expected: tuple[float, ...]) -> None:
    answer = Completion("ab", pb.End(timings=pb.Timings(**timings)), None, (10.0, 12.0), 20.0)
    assert stage_times_ms(answer) == expected
    assert math.fsum(expected) == 20


@pytest.mark.parametrize(
    ("values", "expected"),
    [([7.0], (7, 7, 7)), ([float(n) for n in range(1, 101)], (50, 95, 99)), ([3.0, 1.0], (1, 3, 3))],
)
def test_percentiles_are_values_that_occurred(values: list[float], expected: tuple[float, ...]) -> None:
    assert percentiles(values) == expected


def test_places_repeat_with_the_seed_and_lie_within_code() -> None:
    first, again, other = (list(islice(samples(standard_library(), seed), 20)) for seed in (1, 1, 2))
    assert first == again != other
    assert all((cursor.left + cursor.right).strip() for _uri, cursor in first)
    assert len({uri for uri, _cursor in first}) > 1


async def test_profile_prints_every_stage(serve: Serve, run: Run) -> None:
    fake = await serve()
    result = await run(profile, "--server", fake.address, "--requests", "12", "--concurrency", "4")
    assert result.exit_code == 0
    for stage in [*STAGES, "TTFT", "whole request", "tokens/s", "12 requests, 4 at a time: 12 stop"]:
        assert stage in result.stdout
    assert len({metadata["x-user-id"] for metadata in fake.metadata}) == len(fake.requests) == 15


async def test_profile_for_machines(serve: Serve, run: Run) -> None:
    fake = await serve()
    result = await run(profile, __file__, "--server", fake.address, "--requests", "5", "--mode", "multi", "--json")
    report = json.loads(result.stdout)
    assert (report["requests"], report["endings"]) == (5, {"stop": 5})
    assert [stage["stage"] for stage in report["stages"]] == STAGES
    assert math.fsum(stage["share"] for stage in report["stages"]) == pytest.approx(1, abs=0.001)
    assert report["stages"][4]["p50"] == 1.0
    assert report["ttft_ms"]["p99"] > 0
    for request in fake.requests:
        assert request.document_uri == Path(__file__).as_uri()
        assert (request.mode, request.without_completion_cache) == (pb.MODE_MULTI_LINE, True)


async def test_requests_that_were_shed_are_counted_apart(serve: Serve, run: Run) -> None:
    class ShedsSome(FakeServer):
        async def Complete(self, request, context):  # noqa: ANN001, ANN202
            self.requests.append(request)
            for event in (end(pb.FINISH_REASON_SHED),) if len(self.requests) % 2 else GOOD_ANSWER:
                yield event

    fake = await serve(ShedsSome())
    result = await run(profile, "--server", fake.address, "--requests", "10", "--json")
    assert json.loads(result.stdout)["endings"] == {"stop": 5, "shed": 5}
    none = await serve(FakeServer(answer=(end(pb.FINISH_REASON_SHED),)))
    result = await run(profile, "--server", none.address, "--requests", "3")
    assert result.exit_code == 1
    assert "none of 3 requests was answered: 3 shed" in result.stderr


async def test_files_without_code_or_a_server_are_errors(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    for arguments, status, said in (
        ((str(tmp_path / "a.py"),), 2, "FILES: none of 1 files"),
        (("--server", "127.0.0.1:1"), 1, "No server answers at 127.0.0.1:1"),
    ):
        result = await run(profile, *arguments)
        assert result.exit_code == status
        assert said in result.stderr
