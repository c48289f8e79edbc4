"""`Complete` through the whole server, with a scripted engine behind it."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import grpc
import pytest
import pytest_asyncio
from google.rpc.error_details_pb2 import BadRequest
from grpc_status import rpc_status

from completion.v1 import completion_pb2 as pb
from completion_server.engine.interface import Job
from completion_server.engine.scripted import ScriptedEngine, ServiceTimes
from tests.support.server import (
    ENDLESS,
    RunningServer,
    ask,
    endless_config,
    endless_engine,
    eventually,
    request,
    run_server,
)

WORDS = ("alpha", " beta", " gamma", " delta", "\n", "never shown")
STEP = ServiceTimes(decode_base_s=0.01)


class Said:
    """What the engine was asked, and a script that answers as a test wishes."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.words: Iterable[str] = WORDS

    def __call__(self, job: Job) -> Iterable[str]:
        self.jobs.append(job)
        return self.words


@pytest.fixture
def said() -> Said:
    return Said()


@pytest_asyncio.fixture
async def engine(said: Said) -> ScriptedEngine:
    return endless_engine(said, STEP, num_speculative_tokens=2)


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[RunningServer]:
    async with run_server(endless_config("engine.heartbeat_s=0"), lambda: engine) as running:
        yield running


async def test_a_completion_streams_and_ends_once(server: RunningServer) -> None:
    answer = await ask(server.stub, request("x = "))
    assert (answer.text, answer.reason, answer.code) == ("alpha beta gamma delta", "stop", grpc.StatusCode.OK)
    assert answer.deltas > 1
    assert answer.end is not None
    usage, timings = answer.end.usage, answer.end.timings
    assert usage.prompt_tokens > 0
    assert usage.completion_tokens > 0
    assert usage.drafted_tokens >= usage.accepted_draft_tokens > 0
    parts = timings.queue_ms + timings.tokenise_ms + timings.prefill_ms + timings.decode_ms
    assert 0 < parts <= timings.total_ms


async def test_the_engine_is_given_what_the_request_says(server: RunningServer, said: Said) -> None:
    message = request("x = ", max_tokens=7, temperature=0.5, seed=11, trigger=pb.TRIGGER_EXPLICIT)
    await ask(server.stub, message, metadata=(("x-tenant-id", "acme"),))
    job = said.jobs[-1]
    assert (job.max_tokens, job.sampling.temperature, job.sampling.seed) == (7, 0.5, 11)
    assert (job.priority, job.cache_salt) == (0, "acme")
    assert job.stop_token_ids  # a single line ends in the engine


async def test_cancelling_the_call_frees_the_engine(server: RunningServer, engine: ScriptedEngine, said: Said) -> None:
    said.words = (f" w{i}" for i in range(ENDLESS))
    call = server.stub.Complete(request(max_tokens=ENDLESS))
    await anext(aiter(call))
    call.cancel()
    await eventually(lambda: engine.stats().num_running == 0)
    generated = engine.stats().num_generated_tokens
    await asyncio.sleep(0.1)
    assert engine.stats().num_generated_tokens == generated
    assert engine.stats().num_unwanted_tokens <= 3  # one step: a token and two drafts
    assert server.count("completion_requests_total", outcome="cancelled", trigger="automatic", shed_reason="") == 1
    assert server.count("completion_unwanted_tokens_total") == engine.stats().num_unwanted_tokens


async def test_a_deadline_ends_the_work_wherever_it_is(
    server: RunningServer, engine: ScriptedEngine, said: Said
) -> None:
    said.words = (f" w{i}" for i in range(ENDLESS))
    answer = await ask(server.stub, request(max_tokens=ENDLESS), timeout=0.2)
    assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.text.startswith(" w0")
    await eventually(lambda: engine.stats().num_running == 0)
    assert server.count("completion_requests_total", outcome="deadline", trigger="automatic", shed_reason="") == 1


async def test_a_newer_request_of_the_user_takes_the_older_ones_place(
    server: RunningServer, engine: ScriptedEngine, said: Said
) -> None:
    said.words = (f" w{i}" for i in range(ENDLESS))
    older = asyncio.create_task(ask(server.stub, request(max_tokens=ENDLESS, sequence=1)))
    await eventually(lambda: engine.stats().num_running == 1)
    said.words = WORDS
    newer = await ask(server.stub, request(sequence=2))
    assert (newer.reason, newer.text) == ("stop", "alpha beta gamma delta")
    assert (await older).reason == "superseded"
    assert (await ask(server.stub, request(sequence=1, session_id="another"))).reason == "stop"


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"prefix": "x" * (512 * 1024 + 1)}, "prefix"),
        ({"prefix": "x" * 10_000_000}, "prefix"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**31 - 1}, "max_tokens"),
        ({"trigger": 42}, "trigger"),
        ({"session_id": ""}, "session_id"),
    ],
)
async def test_a_bad_request_is_told_its_field_and_reaches_nobody(
    server: RunningServer, said: Said, message: dict[str, object], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _event in server.stub.Complete(request(**message), timeout=5):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    status = rpc_status.from_call(caught.value)
    assert status is not None
    details = BadRequest()
    assert status.details[0].Unpack(details)
    assert details.field_violations[0].field == field
    assert "got" in details.field_violations[0].description or field == "session_id"
    assert not said.jobs
    assert server.count("completion_refused_requests_total", code="invalid_argument") == 1


async def test_text_that_is_not_utf8_is_a_bad_request_too(server: RunningServer, said: Said) -> None:
    raw = request("SPOIL").SerializeToString().replace(b"SPOIL", b"SP\xffIL")
    method = server.channel.unary_stream("/completion.v1.CompletionService/Complete")
    with pytest.raises(grpc.aio.AioRpcError, match="prefix: must be UTF-8, but byte 2 is 0xff") as caught:
        async for _event in method(raw, timeout=5):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not said.jobs


async def test_a_session_id_is_nobodys_user(server: RunningServer, engine: ScriptedEngine, said: Said) -> None:
    said.words = (f" w{i}" for i in range(ENDLESS))
    call = server.stub.Complete(request(max_tokens=ENDLESS), metadata=(("x-user-id", "bob"),))
    await anext(aiter(call))
    said.words = WORDS
    assert (await ask(server.stub, request(session_id="bob", sequence=9))).reason == "stop"
    await eventually(lambda: engine.stats().num_running == 1)
    assert not call.done()
    call.cancel()


async def test_a_full_server_sheds_at_once(engine: ScriptedEngine, said: Said) -> None:
    said.words = (f" w{i}" for i in range(ENDLESS))
    config = endless_config("scheduling.num_slots=1", "scheduling.max_queued=0", "admission.retry_after_ms=70")
    async with run_server(config, lambda: engine) as server:
        busy = server.stub.Complete(request(max_tokens=ENDLESS, session_id="busy"))
        await anext(aiter(busy))
        answer = await ask(server.stub, request(session_id="late"))
        assert (answer.reason, answer.text, answer.code) == ("shed", "", grpc.StatusCode.OK)
        assert answer.end is not None
        assert answer.end.shed_reason == pb.SHED_REASON_OVERLOAD
        assert answer.end.retry_after_ms == 70
        busy.cancel()


async def test_feedback_is_counted(server: RunningServer) -> None:
    report = pb.ReportFeedbackRequest(session_id="s", sequence=1, kind=pb.FEEDBACK_KIND_ACCEPTED, accepted_characters=5)
    await server.stub.ReportFeedback(report, timeout=5)
    assert server.count("completion_feedback_total", kind="accepted") == 1
    with pytest.raises(grpc.aio.AioRpcError, match="kind: must be one of"):
        await server.stub.ReportFeedback(pb.ReportFeedbackRequest(session_id="s"), timeout=5)


async def test_a_failing_prompt_or_script_is_that_requests_failure_alone(server: RunningServer, said: Said) -> None:
    answer = await ask(server.stub, request("x" * 400_000))  # one line, longer than any budget
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "prefix" in answer.details
    assert (await ask(server.stub, request(sequence=9))).reason == "stop"
