"""What the bridge asks, answers and reports of next edits, in virtual time and on a session that is not real."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from lsprotocol import types
from pygls.workspace import TextDocument

from completion.v1 import completion_pb2 as pb
from completion_client import (
    Completion,
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    ServiceError,
)
from completion_lsp.cursor import Cursor
from completion_lsp.documents import Document
from completion_lsp.next_edits import NextEdits, OfferedEdit
from completion_lsp.settings import Settings
from tests.support.scripted import in_virtual_time

ANSWERS_AFTER_S = 0.2
REFUSALS = [
    FailedPreconditionError("no edits", reason="NO_NEXT_EDITS"),
    InvalidArgumentError("an older server", violations=(FieldViolation("mode", "unknown"),)),
]


class Pending:
    """The answer to a request: the line below the cursor's becomes "new"."""

    def __init__(self, sequence: int, version: int, error: ServiceError | None) -> None:
        self.sequence = sequence
        self.is_cancelled = False
        self._edit = pb.Edit(document_version=version, first_line=1, line_count=1, text="new\n")
        self._error = error

    async def __aiter__(self) -> AsyncIterator[str]:
        await asyncio.sleep(ANSWERS_AFTER_S)
        for text in ():
            yield text

    async def result(self) -> Completion:
        if self._error is not None:
            raise self._error
        return Completion("", pb.End(finish_reason=pb.FINISH_REASON_STOP, edit=self._edit), None, (), 0.0)

    def cancel_nowait(self) -> None:
        self.is_cancelled = True


class Session:
    """Takes requests and feedback."""

    def __init__(self) -> None:
        self.requests: list[pb.CompleteRequest] = []
        self.pending: list[Pending] = []
        self.feedback: list[pb.ReportFeedbackRequest] = []
        self.error: ServiceError | None = None

    def submit_nowait(self, request: pb.CompleteRequest, *, timeout_s: float) -> Pending:
        assert timeout_s == Settings().timeout_s
        self.requests.append(request)
        self.pending.append(Pending(len(self.requests), request.next_edit.document_version, self.error))
        return self.pending[-1]

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        self.feedback.append(feedback)


class User:
    """An editor with one document, the cursor in its first line."""

    def __init__(self, settings: Settings | None = None, text: str = "a\nb\nc\n") -> None:
        self.session = Session()
        self.edits = NextEdits(lambda: self.session, settings or Settings(), lambda _text: ())  # type: ignore[arg-type,return-value]
        self.document = Document(TextDocument("file:///project/a.py", text, 1, "python"))
        self.edits.opened(self.document)
        self.edits.on_connected()

    def edit(self, start: int, end: int, text: str) -> None:
        positions = self.document.positions
        place = types.Range(positions.position_at(start), positions.position_at(end))
        self.document.version = (self.document.version or 0) + 1
        self.document.apply_change(types.TextDocumentContentChangePartial(range=place, text=text))
        self.edits.changed(self.document, self.document.take_edits())

    async def ask(self) -> OfferedEdit | None:
        return await self.edits.edit_at(Cursor(self.document, 0, 0), self.document.version)

    @property
    def sent_diffs(self) -> list[str]:
        return [each.diff for each in self.session.requests[-1].next_edit.recent_edits]


@in_virtual_time
async def test_changes_alone_ask_nothing_and_are_sent_with_the_next_request() -> None:
    user = User()
    user.edit(0, 1, "A")
    await asyncio.sleep(10)
    assert user.session.requests == []
    assert await user.ask() is not None
    assert user.sent_diffs == ["@@ -1,3 +1,3 @@\n-a\n+A\n b\n c\n"]
    assert user.session.requests[0].mode == pb.MODE_NEXT_EDIT


@in_virtual_time
async def test_an_edit_waits_for_the_completion_that_is_asked() -> None:
    user = User()
    user.edits.busy(True)
    asking = asyncio.create_task(user.ask())
    await asyncio.sleep(1)
    assert user.session.requests == []
    user.edits.busy(False)
    assert await asking is not None


@in_virtual_time
async def test_a_change_ends_the_request_and_the_server_s_work() -> None:
    user = User()
    asking = asyncio.create_task(user.ask())
    await asyncio.sleep(0.01)
    user.edit(0, 1, "A")
    async with asyncio.timeout(ANSWERS_AFTER_S / 2):
        assert await asking is None
    assert user.session.pending[0].is_cancelled


@in_virtual_time
async def test_a_newer_request_for_the_same_text_joins_the_one_before() -> None:
    user = User()
    first = asyncio.create_task(user.ask())
    await asyncio.sleep(0.01)
    second = await user.ask()
    assert await first is None
    assert second is not None
    assert len(user.session.requests) == 1


@in_virtual_time
async def test_a_cancelled_request_ends_on_the_server() -> None:
    user = User()
    asking = asyncio.create_task(user.ask())
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert user.session.pending[0].is_cancelled


@in_virtual_time
async def test_a_cancelled_request_leaves_the_one_that_joined_it() -> None:
    user = User()
    first = asyncio.create_task(user.ask())
    await asyncio.sleep(0.01)
    second = asyncio.create_task(user.ask())
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None
    assert first.cancelled()
    assert len(user.session.requests) == 1


@pytest.mark.parametrize("error", REFUSALS, ids=lambda each: each.status.name)
@in_virtual_time
async def test_a_server_that_writes_no_edits_is_asked_once_for_each_connection(error: ServiceError) -> None:
    user = User()
    user.session.error = error
    assert await user.ask() is None
    user.edit(0, 1, "A")
    async with asyncio.timeout(ANSWERS_AFTER_S / 2):
        assert await user.ask() is None
    assert len(user.session.requests) == 1
    user.edits.on_away()
    user.edits.on_connected()
    user.session.error = None
    assert await user.ask() is not None


@in_virtual_time
async def test_a_request_with_another_field_that_is_refused_is_an_error_of_its_own() -> None:
    user = User()
    user.session.error = InvalidArgumentError("too large", violations=(FieldViolation("prefix", "too large"),))
    assert await user.ask() is None
    user.session.error = None
    user.edit(0, 1, "A")
    assert await user.ask() is not None


@pytest.mark.parametrize("eol", ["\n", "\r\n"])
@in_virtual_time
async def test_an_accepted_edit_is_reported_and_followed_and_the_next_one_is_asked_for(eol: str) -> None:
    user = User(text=eol.join(("a", "b", "c", "")))
    offered = await user.ask()
    assert offered is not None
    assert (offered.version, offered.edit.first, offered.edit.text) == (1, 1, "new\n")
    line = 1 + len(eol)
    user.edit(line, 2 * line, f"new{eol}")
    user.edits.accepted(offered.token)
    assert [each.prefix for each in user.session.requests] == ["", "a\nnew"]
    kinds = [(each.kind, each.accepted_characters) for each in user.session.feedback]
    assert kinds == [(pb.FEEDBACK_KIND_SHOWN, 0), (pb.FEEDBACK_KIND_ACCEPTED, len("new\n"))]
    user.session.feedback.clear()
    await asyncio.sleep(31)
    (report,) = user.session.feedback
    assert (report.sequence, report.survived_after_s, report.survived_share) == (1, 30, 1.0)


@in_virtual_time
async def test_an_editor_that_says_what_it_shows_is_believed() -> None:
    user = User()
    user.edits.drawn("none")
    offered = await user.ask()
    assert offered is not None
    assert user.session.feedback == []
    user.edits.drawn(offered.token)
    assert [each.kind for each in user.session.feedback] == [pb.FEEDBACK_KIND_SHOWN]


@in_virtual_time
async def test_edits_of_documents_that_are_excluded_or_closed_are_not_sent() -> None:
    user = User()
    other = Document(TextDocument("file:///project/b.sql", "one\n", 1, "sql"))
    user.edits.opened(other)
    for text in ("two", "three"):
        other.apply_change(types.TextDocumentContentChangeWholeDocument(text=text))
        user.edits.changed(other, other.take_edits())
    assert await user.ask() is not None
    assert len(user.sent_diffs) == 1
    user.edits.use(Settings(exclude=("*.sql",)))
    user.edits.opened(user.document)
    user.edits.opened(other)
    other.apply_change(types.TextDocumentContentChangeWholeDocument(text="four"))
    user.edits.changed(other, other.take_edits())
    user.edit(0, 1, "A")
    assert await user.ask() is not None
    assert [each.document_uri for each in user.session.requests[-1].next_edit.recent_edits] == [user.document.uri]
    user.edits.closed(user.document.uri)
    user.edits.opened(user.document)
    assert await user.ask() is not None
    assert user.sent_diffs == []


@in_virtual_time
async def test_lines_are_sent_whole_or_not_at_all() -> None:
    user = User(text="a\n" + "b\n" * 100_000)
    assert await user.ask() is not None
    assert user.session.requests[0].suffix.endswith("b\n")
    last = user.document.source.rindex("b")
    await user.edits.edit_at(Cursor(user.document, last, last), 1)
    assert user.session.requests[1].prefix.startswith("b\n")
    assert user.session.requests[1].prefix.endswith("b\n")
    user = User(text="b" * 300_000)
    assert await user.ask() is None
    assert await user.edits.edit_at(Cursor(user.document, 300_000, 300_000), 1) is None
    assert user.session.requests == []


@in_virtual_time
async def test_a_request_for_another_version_is_not_answered() -> None:
    user = User()
    assert await user.edits.edit_at(Cursor(user.document, 0, 0), 7) is None
    assert user.session.requests == []
