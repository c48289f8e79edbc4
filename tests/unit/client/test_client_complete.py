"""The command complete: its cursor, its answer and what it says of failures."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from client_fakes import Failure, FakeServer, Run, Serve, delta, end
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2 as details

from completion.v1 import completion_pb2 as pb
from completion_client import Endpoint, RegionSettings, tls_faults
from completion_client.blocking import Contender
from completion_server.client import complete_command
from completion_server.client.complete_command import complete


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "sum.py"
    file.write_text("def add(a, b):\n    return \n\nprint(add(1, 2))\n")
    return file


async def test_the_completion_goes_to_standard_output_and_its_cost_to_standard_error(
    serve: Serve, run: Run, source: Path
) -> None:
    fake = await serve()
    result = await run(complete, f"{source}:2", "--server", fake.address)
    assert (result.exit_code, result.stdout) == (0, "a + b")
    for part in ("TTFT ", " tokens/s", "stop", "5 tokens", "prompt 40 (32 cached)", "draft 8 (3 accepted)"):
        assert part in result.stderr


async def test_the_request_carries_what_the_user_asked_for(serve: Serve, run: Run, source: Path) -> None:
    fake = await serve()
    options = "--mode multi --max-tokens 9 --temperature 0.5 --seed 7 --stop END --stop ; --user ada --session s1"
    more = "--timeout-ms 4000 --no-speculation --no-cache"
    result = await run(complete, f"{source}:2:9", "--server", fake.address, *options.split(), *more.split())
    assert result.exit_code == 0
    assert fake.requests == [
        pb.CompleteRequest(
            session_id="s1",
            sequence=1,
            document_uri=source.as_uri(),
            prefix="def add(a, b):\n    retu",
            suffix="rn \n\nprint(add(1, 2))\n",
            trigger=pb.TRIGGER_EXPLICIT,
            mode=pb.MODE_MULTI_LINE,
            max_tokens=9,
            temperature=0.5,
            seed=7,
            stop=["END", ";"],
            without_speculation=True,
            without_completion_cache=True,
        )
    ]
    assert fake.metadata[0]["x-user-id"] == "ada"
    assert "authorization" not in fake.metadata[0]
    assert 3 < fake.remaining_s[0] < 5


async def test_json_has_everything_for_machines(serve: Serve, run: Run, source: Path) -> None:
    fake = await serve()
    result = await run(complete, f"{source}:2", "--server", fake.address, "--json")
    answer = json.loads(result.stdout)
    assert (result.stdout.count("\n"), result.stderr) == (1, "")
    assert (answer["text"], answer["finish_reason"], answer["error"]) == ("a + b", "stop", None)
    assert (answer["usage"]["cached_prompt_tokens"], answer["timings"]["prefill_ms"]) == (32, 1.0)
    assert 0 < answer["ttft_ms"] <= answer["total_ms"]
    assert answer["tokens_per_s"] > 0
    assert (answer["line"], answer["column"], answer["round_trip_ms"]) == (2, 12, None)
    request = fake.requests[0]  # what is not given is left to the server
    assert (request.max_tokens, request.HasField("temperature"), request.HasField("seed")) == (0, False, False)
    assert request.session_id.startswith("cli-")
    assert "x-user-id" not in fake.metadata[0]


@pytest.mark.parametrize(
    ("arguments", "prefix"),
    [(("-", "--language", "python"), "größe = "), (("--", "-:1:2"), "g"), (("{source}",), "def add")],
    ids=["standard input", "a line of it", "a file without a line"],
)
async def test_a_text_without_a_line_is_completed_at_its_end(
    serve: Serve, run: Run, source: Path, arguments: tuple[str, ...], prefix: str
) -> None:
    fake = await serve()
    given = (each.format(source=source) for each in arguments)
    result = await run(complete, "--server", fake.address, *given, input="größe = ".encode())
    assert result.exit_code == 0
    assert fake.requests[0].prefix.startswith(prefix)
    if "--language" in arguments:
        assert (fake.requests[0].language_id, fake.requests[0].document_uri) == ("python", "untitled:stdin")
    assert (fake.requests[0].suffix == "") == ("--" not in arguments)


async def test_a_unix_socket_is_an_address(serve: Serve, run: Run, source: Path, tmp_path: Path) -> None:
    fake = await serve(address=f"unix:{tmp_path}/s")
    result = await run(complete, f"{source}:2", env={"COMPLETION_SERVER_ADDRESS": fake.address})
    assert (result.exit_code, result.stdout) == (0, "a + b")


LIMIT = pb.Limit(name="admission.user_requests_per_s", allowed=20)
ERROR = pb.RequestError(code=14, message="the engine restarts")


@pytest.mark.parametrize(
    ("answer", "said", "found"),
    [
        (end(pb.FINISH_REASON_STOP, text="b", usage=pb.Usage(cache_level=pb.CACHE_LEVEL_NONE)), "",
         {"text": "b", "cache_level": None}),
        (end(pb.FINISH_REASON_STOP, text="b", usage=pb.Usage(cache_level=pb.CACHE_LEVEL_SHARED)),
         "from the shared cache", {"cache_level": "shared"}),
        (end(pb.FINISH_REASON_SHED, shed_reason=pb.SHED_REASON_RATE_LIMITED, limit=LIMIT),
         "(rate limited); the limit is admission.user_requests_per_s = 20.",
         {"limit": {"name": "admission.user_requests_per_s", "allowed": 20}}),
        (end(pb.FINISH_REASON_SHED, shed_reason=pb.SHED_REASON_DEADLINE_UNREACHABLE, retry_after_ms=250),
         "No completion: the server did not attempt it (deadline unreachable); ask again in 250 ms.",
         {"finish_reason": "shed", "shed_reason": "deadline_unreachable", "retry_after_ms": 250, "ttft_ms": None,
          "tokens_per_s": None}),
        (end(pb.FINISH_REASON_SUPERSEDED), "superseded", {"finish_reason": "superseded", "error": None}),
        (end(pb.FINISH_REASON_ERROR, error=ERROR, retry_after_ms=900),
         "can't answer now: the engine restarts. Ask again in 900 ms.", {"text": "", "finish_reason": "error"}),
    ],
    ids=["computed", "cached", "limited", "shed", "superseded", "failed"],
)  # fmt: skip
async def test_each_end_is_shown(
    serve: Serve, run: Run, source: Path, answer: pb.CompleteResponse, said: str, found: dict[str, Any]
) -> None:
    fake = await serve(FakeServer(answer=(answer,)))
    result = await run(complete, f"{source}:2", "--server", fake.address)
    assert (result.exit_code, result.stdout) == (answer.end.finish_reason == pb.FINISH_REASON_ERROR, answer.end.text)
    assert said in result.stderr
    assert ("from the" in result.stderr) == ("from the" in said)
    machine = json.loads((await run(complete, f"{source}:2", "--server", fake.address, "--json")).stdout)
    assert {name: machine[name] for name in found} == found


VIOLATION = details.BadRequest.FieldViolation(field="stop[0]", description="at most 64 bytes, got 90")
OVERLOAD = details.ErrorInfo(reason="OVERLOAD", domain="completion-server")


def retry_after(**time_s: int) -> details.RetryInfo:
    return details.RetryInfo(retry_delay=Duration(**time_s))


@pytest.mark.parametrize(
    ("failure", "sentence", "error"),
    [
        (Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", (details.BadRequest(field_violations=[VIOLATION]),)),
         "refused the request: stop[0]: at most 64 bytes, got 90.",
         {"field_violations": [{"field": "stop[0]", "description": "at most 64 bytes, got 90"}]}),
        (Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "why", (OVERLOAD, retry_after(nanos=300_000_000))),
         "is overloaded: why. Ask again in 300 ms.", {"reason": "OVERLOAD", "retry_after_ms": 300}),
        (Failure(grpc.StatusCode.UNAVAILABLE, "why", (retry_after(seconds=41),)),
         "can't answer now: why. Ask again in 41 s.", {"retry_after_ms": 41_000}),
        (Failure(grpc.StatusCode.UNAUTHENTICATED, "why"), "wants a token: why. Give one with --token-file FILE", {}),
        (Failure(grpc.StatusCode.UNAUTHENTICATED, "the client's certificate was revoked"),
         "wants a certificate that it takes (--tls-cert, --tls-key): the client's certificate was revoked.", {}),
        (Failure(grpc.StatusCode.PERMISSION_DENIED, "why"), "does not allow this to you: why.", {}),
        (Failure(grpc.StatusCode.FAILED_PRECONDITION, "why"), "can't do this: why.", {}),
        (Failure(grpc.StatusCode.UNIMPLEMENTED, "why"), "does not serve this: why. Is it the right port?", {}),
        (Failure(grpc.StatusCode.INTERNAL, "why"), "failed: why (INTERNAL).", {"message": "why", "reason": None}),
    ],
    ids=lambda value: value.code.name if isinstance(value, Failure) else "",
)  # fmt: skip
async def test_each_status_becomes_a_sentence(
    serve: Serve, run: Run, source: Path, failure: Failure, sentence: str, error: dict[str, Any]
) -> None:
    fake = await serve(FakeServer(answer=(), failure=failure))
    result = await run(complete, f"{source}:2", "--server", fake.address, "--json")
    assert result.exit_code == 1
    assert sentence in result.stderr
    found = json.loads(result.stdout)
    assert (found["error"]["code"], found["finish_reason"]) == (failure.code.name, None)
    assert {name: found["error"][name] for name in error} == error


async def test_text_that_came_before_the_deadline_is_kept(serve: Serve, run: Run, source: Path) -> None:
    fake = await serve(FakeServer(answer=(delta("half"),), is_hanging=True))
    result = await run(complete, f"{source}:2", "--server", fake.address, "--timeout-ms", "500", "--json")
    assert (result.exit_code, json.loads(result.stdout)["text"]) == (1, "half")
    assert "--timeout-ms" in result.stderr


async def test_a_stream_without_an_end_is_an_error(serve: Serve, run: Run, source: Path) -> None:
    fake = await serve(FakeServer(answer=(delta("x"),)))
    result = await run(complete, f"{source}:2", "--server", fake.address)
    assert result.exit_code == 1
    assert "without saying how the request ended" in result.stderr


async def test_no_connection_says_why(run: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_faults, "_CHECK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # as a server that is suspended, or a time that is too short
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for server, options, said in (
            ("127.0.0.1:1", (), "No server answers at 127.0.0.1:1 (Connection refused"),
            ("127.0.0.1:1", (), "Start one with: completion-server serve --config FILE"),
            ("localhost:abc", (), "No server answers at localhost:abc (localhost:abc). "),
            (address, ("--timeout-ms", "1"), f"{address} did not connect within the time that it had"),
        ):
            result = await run(complete, f"{source}:2", "--server", server, *options)
            assert (result.exit_code, result.stdout) == (1, "")
            assert said in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py:3"], "nowhere.py can't be read: no such file or directory"),
        (["-:6"], "to complete standard input at a line, write: complete -- -:6"),
        (["{source}:99"], "has 5 lines; line 99 is beyond its end"),
        (["{source}:1:99"], "its columns go from 1 to 15"),
        (["{source}:1", "--mode", "all"], "--mode"),
        (["{source}:1", "--user", "zoë"], "--user: only printable ASCII can be sent"),
        (["{source}:1", "--tls-cert", "{source}"], "--tls-cert and --tls-key go together"),
        (["{source}:1", "--server", "a:1,,b:2"], "--server: expected ADDRESS[,ADDRESS...], got 'a:1,,b:2'"),
    ],
)
async def test_bad_usage_ends_with_2(run: Run, source: Path, arguments: list[str], message: str) -> None:
    result = await run(complete, *(argument.format(source=source) for argument in arguments))
    assert result.exit_code == 2
    assert message in result.stderr


async def test_of_several_servers_the_users_own_is_asked(
    serve: Serve, run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = RegionSettings(tier_margin_ms=60_000, check_timeout_s=60, race_s=60)  # however busy this machine is
    monkeypatch.setattr(complete_command, "_race", lambda _timeout_s: near)
    fakes = [await serve() for _ in range(3)]
    addresses = ",".join(fake.address for fake in fakes)
    for _ in range(2):
        result = await run(complete, f"{source}:2", "--server", addresses, "--user", "ada")
        assert result.exit_code == 0
    assert sorted(len(fake.requests) for fake in fakes) == [0, 0, 2]


async def test_of_several_servers_one_that_refuses_is_passed_over_and_the_one_that_answered_is_named(
    serve: Serve, run: Run, source: Path
) -> None:
    draining = await serve(FakeServer(answer=(), failure=Failure(grpc.StatusCode.UNAVAILABLE, "the server drains")))
    fake = await serve()
    for user in ("ada", "bob", "cyd", "dee"):
        addresses = f"127.0.0.1:1,{draining.address},{fake.address}"
        result = await run(complete, f"{source}:2", "--server", addresses, "--user", user, "--verbose", "--json")
        answer = json.loads(result.stdout)
        assert (result.exit_code, answer["text"], answer["server"]) == (0, "a + b", fake.address)
        assert 0 < answer["round_trip_ms"] < 5000
        for part in (f"asked {fake.address}", "127.0.0.1:1 not measured", f"{fake.address} ", "ms away"):
            assert part in result.stderr


async def test_servers_that_went_silent_share_the_time_of_the_request(
    serve: Serve, run: Run, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They accept connections, as a server that is suspended does. The deadline covers connecting, too."""
    fake = await serve()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        addresses = [f"127.0.0.1:{silent.getsockname()[1]}", fake.address]

        @contextmanager
        def open_in_order(*_: object, **__: object) -> Iterator[list[Contender]]:
            with grpc.insecure_channel(addresses[0]) as first, grpc.insecure_channel(addresses[1]) as second:
                pairs = zip(addresses, (first, second), strict=True)
                yield [Contender(Endpoint(each), channel, 1.0) for each, channel in pairs]

        monkeypatch.setattr(complete_command, "open_in_order", open_in_order)
        result = await run(complete, f"{source}:2", "--server", ",".join(addresses), "--timeout-ms", "4000", "--json")
    assert (result.exit_code, json.loads(result.stdout)["server"]) == (0, fake.address)
    assert len(fake.requests) == 1
    assert 0 < fake.remaining_s[0] <= 2.0, "the first one has had half of it"
