"""What the bridge asks, answers and reports of next edits, in virtual time and on a session that is not real."""

import asyncio
from collections.abc import Sequence

import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import FailedPreconditionError, FieldViolation, InvalidArgumentError, ServiceError
from completion_lsp.cursor import Cursor
from completion_lsp.documents import Edit
from completion_lsp.next_edits import NextEdits, OfferedEdit
from completion_lsp.settings import Settings
from tests.support.lsp_sessions import ANSWERS_AFTER_S, EditorUser, document_of, replace_all
from tests.support.scripted import in_virtual_time


def answer(request: pb.CompleteRequest) -> pb.End:
    """Make the line below the cursor's "new"."""
    version = request.next_edit.document_version
    edit = pb.Edit(document_version=version, first_line=1, line_count=1, text="new\n")
    return pb.End(finish_reason=pb.FINISH_REASON_STOP, edit=edit)


class User(EditorUser):
    """The cursor is in the first line."""

    def __init__(self, text: str = "a\nb\nc\n") -> None:
        super().__init__(answer, text)
        self.edits = NextEdits(lambda: self.session, Settings(), lambda _text: ())  # type: ignore[arg-type,return-value]
        self.edits.opened(self.document)
        self.edits.on_connected()

    def changed(self, edits: Sequence[Edit]) -> None:
        self.edits.changed(self.document, edits)

    async def ask(self, at: int = 0) -> OfferedEdit | None:
        return await self.edits.edit_at(Cursor(self.document, at, at), self.document.version)

    async def asking(self) -> "asyncio.Task[OfferedEdit | None]":
        """Ask, and return when the request was sent."""
        task = asyncio.create_task(self.ask())
        await asyncio.sleep(0.01)
        return task

    @property
    def sent_diffs(self) -> list[tuple[str, str]]:
        edits = self.session.requests[-1].next_edit.recent_edits
        return [(each.document_uri.rpartition("/")[2], each.diff) for each in edits]


@in_virtual_time
async def test_changes_alone_ask_nothing_and_are_sent_with_the_next_request() -> None:
    user = User()
    user.edit(0, 1, "A")
    await asyncio.sleep(10)
    assert user.session.requests == []
    assert await user.ask() is not None
    assert user.sent_diffs == [("a.py", "@@ -1,3 +1,3 @@\n-a\n+A\n b\n c\n")]
    assert user.session.requests[0].mode == pb.MODE_NEXT_EDIT


@in_virtual_time
async def test_an_edit_waits_for_the_completion_that_is_asked() -> None:
    user = User()
    user.edits.busy(True)
    asking = await user.asking()
    await asyncio.sleep(1)
    assert user.session.requests == []
    user.edits.busy(False)
    assert await asking is not None


@pytest.mark.parametrize("by", ["a change", "the editor", "a newer request"])
@in_virtual_time
async def test_a_request_ends_with_the_server_s_work_unless_a_newer_one_joins_it(by: str) -> None:
    user = User()
    first = await user.asking()
    second = await user.asking() if by != "a change" else None
    if by == "a change":
        user.edit(0, 1, "A")
        async with asyncio.timeout(ANSWERS_AFTER_S / 2):
            assert await first is None
        assert user.session.pending[0].is_cancelled
        return
    assert second is not None
    assert await first is None
    if by == "the editor":
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
    else:
        assert await second is not None
    assert user.session.pending[0].is_cancelled is (by == "the editor")
    assert len(user.session.requests) == 1


@in_virtual_time
async def test_a_cancelled_request_leaves_the_one_that_joined_it() -> None:
    user = User()
    first = await user.asking()
    second = asyncio.create_task(user.ask())
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None
    assert first.cancelled()


@pytest.mark.parametrize(
    ("error", "asks_again"),
    [
        (FailedPreconditionError("no edits", reason="NO_NEXT_EDITS"), False),
        (InvalidArgumentError("an older server", violations=(FieldViolation("mode", "unknown"),)), False),
        (InvalidArgumentError("too large", violations=(FieldViolation("prefix", "too large"),)), True),
    ],
)
@in_virtual_time
async def test_a_server_that_writes_no_edits_is_asked_once_for_each_connection(
    error: ServiceError, asks_again: bool
) -> None:
    user = User()
    user.session.error = error
    assert await user.ask() is None
    user.session.error = None
    user.edit(0, 1, "A")
    assert bool(await user.ask()) is asks_again
    if not asks_again:
        assert len(user.session.requests) == 1
        user.edits.on_away()
        user.edits.on_connected()
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
    assert user.session.kinds == [("SHOWN", 0), ("ACCEPTED", len("new\n"))]
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
    assert user.session.kinds == [("SHOWN", 0)]


@in_virtual_time
async def test_edits_of_documents_that_are_excluded_or_closed_are_not_sent() -> None:
    user = User()
    other = document_of("b.sql", "one\n", "sql")
    for settings, names in ((Settings(), ["b.sql", "a.py"]), (Settings(exclude=("*.sql",)), ["a.py"])):
        user.edits.use(settings)
        user.edits.opened(user.document)
        user.edits.opened(other)
        user.edits.changed(other, replace_all(other, f"{settings}"))
        user.edit(0, 1, f"A{names}")
        assert await user.ask() is not None
        assert [name for name, _ in user.sent_diffs] == names
    user.edits.closed(user.document.uri)
    user.edits.opened(user.document)
    assert await user.ask() is not None
    assert user.sent_diffs == []


@in_virtual_time
async def test_lines_are_sent_whole_or_not_at_all_and_another_version_is_not_answered() -> None:
    user = User(text="a\n" + "b\n" * 100_000)
    assert await user.ask() is not None
    assert user.session.requests[0].suffix.endswith("b\n")
    await user.ask(user.document.source.rindex("b"))
    assert user.session.requests[1].prefix.startswith("b\n")
    assert user.session.requests[1].prefix.endswith("b\n")
    user = User(text="b" * 300_000)
    assert (await user.ask(), await user.ask(300_000)) == (None, None)
    assert await user.edits.edit_at(Cursor(user.document, 0, 0), 7) is None
    assert user.session.requests == []
