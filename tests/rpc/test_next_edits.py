"""Next edits through the whole server, with the scripted model of them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient
from completion_server.app.engine_factory import make_engine_factory
from completion_server.config import Config
from completion_server.engine.interface import GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes
from tests.support.next_edits import applied, diff_of
from tests.support.server import RunningServer, ask, eventually, make_config, next_event, request, run_server

EDITS = (
    "engine.kind=scripted",
    "engine.scripted_times=instant",
    "engine.max_model_len=4096",
    "prompt.next_edit_template=sweep",
)
ABOVE, BELOW = "def area(width, high):\n    # a rectangle\n    ", "return width * height\n\n\nprint(height)\n"
RENAMED = diff_of("def area(width, height):\n", "def area(width, high):\n")


def edits_config(*overrides: str) -> Config:
    return make_config(*EDITS, *overrides)


def edit_request(prefix: str = ABOVE, suffix: str = BELOW, *diffs: str, **fields: Any) -> pb.CompleteRequest:
    recent = [pb.RecentEdit(document_uri="file:///a.py", diff=diff) for diff in diffs]
    asked = pb.NextEdit(document_version=3, recent_edits=recent)
    return request(
        prefix, suffix, **({"document_uri": "file:///a.py", "mode": pb.MODE_NEXT_EDIT, "next_edit": asked} | fields)
    )


@pytest_asyncio.fixture(scope="module")
async def server() -> AsyncIterator[RunningServer]:
    config = edits_config()
    async with run_server(config, make_engine_factory(config)) as running:
        yield running


def with_crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("above", "below"), [(ABOVE, BELOW), (with_crlf(ABOVE), with_crlf(BELOW).rstrip())], ids=["LF", "CRLF"]
)
async def test_the_next_edit_of_a_rename_is_its_other_places(server: RunningServer, above: str, below: str) -> None:
    answer = await ask(server.stub, edit_request(above, below, RENAMED))
    assert (answer.reason, answer.text, answer.deltas) == ("stop", "", 0)
    assert answer.end is not None
    edit = answer.end.edit
    assert edit == pb.Edit(document_version=3, first_line=0, line_count=4, text=edit.text)
    assert applied(above, below, edit) == (above + below).replace("height", "high")
    assert answer.end.usage.completion_tokens > 10
    accepted = pb.ReportFeedbackRequest(
        session_id="s", sequence=1, kind=pb.FEEDBACK_KIND_ACCEPTED, accepted_characters=9
    )
    await server.stub.ReportFeedback(accepted, timeout=20)


@pytest.mark.parametrize(
    ("message", "is_generated"),
    [(edit_request(), True), (edit_request("SEPARATOR = '<|file_sep|>", "'\n", RENAMED), False)],
    ids=["no change", "cursor in a marker"],
)
async def test_without_anything_to_change_there_is_no_edit(
    server: RunningServer, message: pb.CompleteRequest, is_generated: bool
) -> None:
    answer = await ask(server.stub, message)
    assert answer.reason == "stop"
    assert answer.end is not None
    assert not answer.end.HasField("edit")
    assert bool(answer.end.usage.completion_tokens) is is_generated


async def test_an_answer_that_is_cut_is_no_edit() -> None:
    def words(_request: GenerationRequest) -> list[str]:
        return ["\n", *["x = 1\n"] * 100]

    config = edits_config()
    async with run_server(config, lambda: ScriptedEngine(words)) as server:
        answer = await ask(server.stub, edit_request(ABOVE, BELOW, RENAMED, max_tokens=20))
    assert answer.reason == "length"
    assert answer.end is not None
    assert not answer.end.HasField("edit")


async def test_the_same_edit_is_computed_again() -> None:
    config = edits_config("cache.enabled=true")
    async with run_server(config, make_engine_factory(config)) as server:
        for sequence in (1, 2):
            answer = await ask(server.stub, edit_request(ABOVE, BELOW, RENAMED, sequence=sequence))
            assert answer.end is not None
            assert answer.end.HasField("edit")
            assert answer.end.usage.cache_level == pb.CACHE_LEVEL_NONE
        assert server.count("completion_cache_entries") == 0


async def test_a_model_without_a_template_says_so() -> None:
    config = make_config()
    async with run_server(config, make_engine_factory(make_config("engine.kind=scripted"))) as server:
        answer = await ask(server.stub, edit_request())
        assert answer.code is grpc.StatusCode.FAILED_PRECONDITION
        assert "next edits" in answer.details
        end = await _session_end(server, edit_request())
    assert end.finish_reason == pb.FINISH_REASON_ERROR
    assert end.error.reason == pb.ERROR_REASON_NO_NEXT_EDITS


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"next_edit": None}, "next_edit: must be set with MODE_NEXT_EDIT, and is not"),
        ({"mode": pb.MODE_MULTI_LINE}, "next_edit: must be set with MODE_NEXT_EDIT only, got MODE_MULTI_LINE"),
        ({"stop": ["x"]}, "stop: must be empty with MODE_NEXT_EDIT, got 1 entries"),
        ({"max_tokens": 513}, "max_tokens: must be from 0 (the default) to 512, got 513"),
        ({"next_edit": pb.NextEdit(lines_before=101)}, "next_edit.lines_before: must be at most 100, got 101"),
        (
            {"next_edit": pb.NextEdit(recent_edits=[pb.RecentEdit(diff=RENAMED), pb.RecentEdit(diff="-a\n+b\n")])},
            'next_edit.recent_edits[1].diff: must be the hunks of a unified diff: line 1 must be "@@ -1,2 +1,2 @@"',
        ),
        (
            {"next_edit": pb.NextEdit(recent_edits=[pb.RecentEdit(diff="@@ -1 +1 @@\n*a\n")])},
            "next_edit.recent_edits[0].diff: must be the hunks of a unified diff: "
            'line 2 must be one that begins with " ", "-", "+" or "@@"',
        ),
        (
            {"next_edit": pb.NextEdit(recent_edits=[pb.RecentEdit(diff="@@ -1 +1 @@\n" + "+a\n" * 9000)])},
            "next_edit.recent_edits[0].diff: must be at most 16384 bytes, got 27012",
        ),
        (
            {"next_edit": pb.NextEdit(recent_edits=[pb.RecentEdit(diff=RENAMED)] * 17)},
            "next_edit.recent_edits: must have at most 16 entries, got 17",
        ),
    ],
)
async def test_a_bad_request_names_the_field(server: RunningServer, fields: dict[str, Any], expected: str) -> None:
    answer = await ask(server.stub, edit_request(**fields))
    assert (answer.code, answer.details) == (grpc.StatusCode.INVALID_ARGUMENT, expected)


async def test_a_completion_supersedes_an_edit_and_the_other_way_round() -> None:
    def words(_request: GenerationRequest) -> list[str]:
        return ["\n", "x = 1"]

    config = edits_config()
    slow = ServiceTimes(prefill_base_s=0.3)
    async with run_server(config, lambda: ScriptedEngine(words, slow)) as server:
        call = server.stub.Session()
        await call.write(pb.SessionRequest(complete=edit_request(sequence=1)))
        await eventually(lambda: server.count("completion_running_requests") == 1)
        await call.write(pb.SessionRequest(complete=request(sequence=2, document_uri="file:///a.py")))
        ended = await next_event(call)
        assert (ended.sequence, ended.end.finish_reason) == (1, pb.FINISH_REASON_SUPERSEDED)
        await call.write(pb.SessionRequest(complete=edit_request(sequence=3)))
        ended = await next_event(call)
        assert (ended.sequence, ended.end.finish_reason) == (2, pb.FINISH_REASON_SUPERSEDED)
        ended = await next_event(call)
        assert (ended.sequence, ended.end.finish_reason) == (3, pb.FINISH_REASON_STOP)
        assert ended.end.edit.text == "x = 1\n"
        await call.done_writing()


async def test_the_client_has_the_edit(server: RunningServer) -> None:
    async with CompletionClient(server.ready.address, user="ada") as client:
        whole = await client.complete(edit_request(ABOVE, BELOW, RENAMED, session_id="", sequence=0), timeout_s=20)
        none = await client.complete(edit_request(session_id="", sequence=0), timeout_s=20)
        async with client.session() as session:
            over = await session.complete(edit_request(ABOVE, BELOW, RENAMED), timeout_s=20)
    assert none.edit is None
    assert whole.edit is not None
    assert whole.edit == over.edit
    assert whole.edit.document_version == 3


async def _session_end(server: RunningServer, message: pb.CompleteRequest) -> pb.End:
    call = server.stub.Session()
    await call.write(pb.SessionRequest(complete=message))
    async with asyncio.timeout(20):
        event = await next_event(call)
    await call.done_writing()
    return event.end
