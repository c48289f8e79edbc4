"""`Complete` through the whole server, with a scripted engine behind it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from grpc_status import rpc_status

from completion.v1 import completion_pb2 as pb
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.server import (
    ENDLESS,
    Answer,
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
    """Records the requests to the engine, and answers them from a script."""

    def __init__(self) -> None:
        self.generations: list[GenerationRequest] = []
        self.words: Iterable[str] = WORDS

    def __call__(self, generation: GenerationRequest) -> Iterable[str]:
        self.generations.append(generation)
        return self.words


@pytest.fixture
def said() -> Said:
    return Said()


@pytest_asyncio.fixture
async def engine(said: Said) -> ScriptedEngine:
    # All drafts are accepted: other rates draw by the request's number, which depends on the tests that ran before.
    return endless_engine(said, STEP, num_speculative_tokens=2, acceptance_rate=1.0)


@pytest_asyncio.fixture
async def server(engine: ScriptedEngine) -> AsyncIterator[RunningServer]:
    async with run_server(endless_config("engine.heartbeat_s=0"), lambda: engine) as running:
        yield running


async def test_a_completion_streams_and_ends_once(server: RunningServer) -> None:
    answer = await ask(server.stub, request("x = "))
    assert (answer.text, answer.reason, answer.code) == ("alpha beta gamma delta", "stop", grpc.StatusCode.OK)
    assert answer.deltas >= 1
    assert answer.end is not None
    usage, timings = answer.end.usage, answer.end.timings
    assert usage.prompt_tokens > 0
    assert usage.completion_tokens > 0
    assert usage.drafted_tokens >= usage.accepted_draft_tokens > 0
    parts = timings.queue_ms + timings.tokenise_ms + timings.prefill_ms + timings.decode_ms
    assert 0 < parts <= timings.total_ms


async def test_the_engine_gets_the_requests_parameters(server: RunningServer, said: Said) -> None:
    message = request("x = ", max_tokens=7, temperature=0.5, seed=11, trigger=pb.TRIGGER_EXPLICIT)
    await ask(server.stub, message, metadata=(("x-tenant-id", "acme"),))
    generation = said.generations[-1]
    assert (generation.max_tokens, generation.sampling.temperature, generation.sampling.seed) == (7, 0.5, 11)
    assert (generation.begins_with, generation.num_beginning_tokens) == (" ", 1)
    assert generation.priority == 0
    assert generation.stop_token_ids  # a single line ends in the engine


async def test_cancelling_the_call_frees_the_engine(server: RunningServer, engine: ScriptedEngine, said: Said) -> None:
    said.words = (f" w{i}" for i in range(ENDLESS))
    call = server.stub.Complete(request(max_tokens=ENDLESS))
    await anext(aiter(call))
    call.cancel()
    await eventually(lambda: engine.stats().num_running == 0)
    generated = engine.stats().num_generated_tokens
    await asyncio.sleep(0.1)
    assert engine.stats().num_generated_tokens == generated
    assert engine.stats().num_aborted_tokens <= 3  # one step: a token and two drafts
    assert server.count("completion_requests_total", outcome="cancelled", trigger="automatic", shed_reason="") == 1
    assert server.count("completion_engine_aborted_tokens_total") == engine.stats().num_aborted_tokens


async def test_a_deadline_ends_the_work_wherever_it_is(
    server: RunningServer, engine: ScriptedEngine, said: Said
) -> None:
    said.words = (f" w{i}" for i in range(ENDLESS))
    answer = await ask(server.stub, request(max_tokens=ENDLESS), timeout=1.0)
    assert answer.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert answer.text.startswith(" w0")
    await eventually(lambda: engine.stats().num_running == 0)
    assert server.count("completion_requests_total", outcome="deadline", trigger="automatic", shed_reason="") == 1


async def test_an_invalid_request_is_refused_with_its_field_before_the_engine(
    server: RunningServer, said: Said
) -> None:
    faults: dict[str, dict[str, Any]] = {
        "prefix": {"prefix": "x" * (512 * 1024 + 1)},
        "message": {"snippets": [{}] * 200_000},
        "session_id": {"session_id": ""},
    }
    for field, message in faults.items():
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _event in server.stub.Complete(request(**message), timeout=5):
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        status, details = rpc_status.from_call(caught.value), BadRequest()
        assert status is not None
        assert status.details[0].Unpack(details)
        assert [each.field for each in details.field_violations] == [field]
    assert not said.generations
    assert server.count("completion_refused_requests_total", code="invalid_argument") == len(faults)


async def test_typing_the_generated_text_reattaches_to_the_generation(
    server: RunningServer, engine: ScriptedEngine, said: Said
) -> None:
    older = asyncio.create_task(ask(server.stub, request("x = ")))
    await eventually(lambda: engine.stats().num_running == 1)
    engine.hang()  # so that the first request is still there when the second comes
    newer_asks = asyncio.create_task(ask(server.stub, request("x = alpha b", sequence=2)))
    await eventually(lambda: server.count("completion_generations_reattached_total") == 1)
    engine.resume()
    newer = await newer_asks
    assert (newer.text, newer.reason) == ("eta gamma delta", "stop")
    assert newer.end is not None
    assert newer.end.usage.completion_tokens > 0
    old = await older
    assert old.end is not None
    assert (old.reason, old.end.usage.completion_tokens) == ("superseded", 0)
    assert len(said.generations) == 1
    assert server.count("completion_generations_diverged_total") == 0


async def shed_answer(
    engine: ScriptedEngine, said: Said, *overrides: str
) -> tuple[Answer, grpc.aio.AioRpcError | None]:
    """Ask a server that has no slot free; return the answer, and the error that the call ended with."""
    said.words = (f" w{i}" for i in range(ENDLESS))
    config = endless_config("scheduling.max_slots=1", "admission.retry_after_ms=30", *overrides)
    answer = Answer()
    async with run_server(config, lambda: engine) as server:
        busy = server.stub.Complete(request(max_tokens=ENDLESS, session_id="busy"))
        await anext(aiter(busy))
        call = server.stub.Complete(request(session_id="late"), timeout=20)
        try:
            async for event in call:
                answer.take(event)
        except grpc.aio.AioRpcError as error:
            return answer, error
        finally:
            busy.cancel()
    return answer, None


@pytest.mark.parametrize(
    ("settings", "reason", "limit"),
    [
        (("scheduling.max_queued=0",), pb.SHED_REASON_OVERLOAD, pb.Limit(name="scheduling.max_queued", allowed=0)),
        (("shed.when=late", "shed.budget_ms=20"), pb.SHED_REASON_DEADLINE_UNREACHABLE, None),
    ],
)
async def test_a_full_server_sheds_at_once_or_what_has_no_token_in_time(
    engine: ScriptedEngine, said: Said, settings: tuple[str, ...], reason: pb.ShedReason, limit: pb.Limit | None
) -> None:
    answer, error = await shed_answer(engine, said, *settings)
    assert error is None
    assert answer.end is not None
    assert (answer.reason, answer.text, answer.end.shed_reason) == ("shed", "", reason)
    assert limit is None or (answer.end.limit, answer.end.retry_after_ms) == (limit, 30)


async def test_a_shed_call_fails_with_a_status_if_configured(engine: ScriptedEngine, said: Said) -> None:
    answer, error = await shed_answer(engine, said, "shed.as_status=true", "scheduling.max_queued=0")
    assert (answer.end, answer.text) == (None, "")
    assert error is not None
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "the request was shed: overload by scheduling.max_queued = 0"
    status = rpc_status.from_call(error)
    assert status is not None
    info, retry = ErrorInfo(), RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.reason, info.domain) == ("OVERLOAD", "completion.v1")
    assert dict(info.metadata) == {"limit": "scheduling.max_queued", "allowed": "0"}
    assert retry.retry_delay.ToMilliseconds() == 30


async def test_feedback_is_counted_for_known_answers(server: RunningServer) -> None:
    text = (await ask(server.stub, request())).text

    async def report(**fields: Any) -> None:
        fields = {"session_id": "s", "sequence": 1, "kind": pb.FEEDBACK_KIND_ACCEPTED} | fields
        await server.stub.ReportFeedback(pb.ReportFeedbackRequest(**fields), timeout=5)

    for refused, match in (
        ({"kind": pb.FEEDBACK_KIND_UNSPECIFIED}, "kind: must be one of"),
        ({"sequence": 2}, "sequence: must be that of an answer"),
        ({"session_id": "other"}, "sequence: must be that of an answer"),
        ({"accepted_characters": len(text) + 1}, f"accepted_characters: must be at most {len(text)}"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=match):
            await report(**refused)
    assert server.count("completion_accepted_characters_total") == 0
    await report(accepted_characters=len(text))
    await report(accepted_characters=0)  # sent again
    assert server.count("completion_feedback_total", kind="accepted") == 1
    assert server.count("completion_accepted_characters_total") == len(text)


async def test_the_users_of_a_tenant_share_its_limit() -> None:
    config = endless_config("admission.tenant_requests_per_s=0.01", "admission.request_burst_s=200")
    async with run_server(config, lambda: endless_engine(lambda _generation: ("a",), ServiceTimes())) as server:
        reasons = []
        for number, tenant in enumerate(("acme", "acme", "acme", "other")):
            metadata = (("x-user-id", f"user-{number}"), ("x-tenant-id", tenant))
            reasons.append((await ask(server.stub, request(), metadata=metadata)).reason)
    assert reasons == ["stop", "stop", "shed", "stop"]
