"""Answers an editor's requests for the next edit, by the policy of `completion_client.editing`."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lsprotocol import types

from completion.v1 import completion_pb2 as pb
from completion_client import InvalidArgumentError, ServiceError, Session
from completion_client.editing import (
    NO_NEXT_EDITS,
    AskEdit,
    Change,
    LineEdit,
    NextEditPolicy,
    RecentEdits,
    ShowEdit,
    Snippet,
    Text,
)
from completion_lsp.calls import Ended
from completion_lsp.cursor import Cursor
from completion_lsp.documents import Document, Edit
from completion_lsp.positions import raw_length, unix_lines
from completion_lsp.requests import edit_request_of
from completion_lsp.runner import Runner, now_ms
from completion_lsp.settings import Settings
from completion_lsp.survival import Survival

_NO_NEXT_EDITS = "NO_NEXT_EDITS"
"""The contract's ErrorReason of a server whose model writes no edits. An older server does not know the mode."""


@dataclass(frozen=True, slots=True)
class OfferedEdit:
    """An edit of whole lines of a version of a document."""

    token: str
    """Names it in the editor's messages."""
    request: int
    document: Document
    version: int
    edit: LineEdit


class NextEdits:
    """Decides for one editor. Use it in one event loop."""

    def __init__(
        self,
        session: Callable[[], Session | None],
        settings: Settings,
        snippets: Callable[[Text], Sequence[Snippet]],
    ) -> None:
        """Ask the server by the session that `session` returns, if there is one, and send snippets along."""
        self._session = session
        self._settings = settings
        self._snippets = snippets
        self._runner, self._recent = self._make_runner(), RecentEdits()
        self._survival = Survival()
        self._tokens = itertools.count(1)
        self._offered: OfferedEdit | None = None
        """The last one."""
        self._reports_drawn = False
        self._cursor: Cursor | None = None
        self._waiting: asyncio.Future[None] | None = None

    def use(self, settings: Settings) -> None:
        """Begin anew with other settings, without text of documents that these may exclude."""
        self._runner.stop()
        self._settings = settings
        self._runner, self._recent = self._make_runner(), RecentEdits()
        self._offered = self._cursor = None

    async def edit_at(self, cursor: Cursor, version: int | None) -> OfferedEdit | None:
        """Return the next edit of a version of the document; None if there is none, or the text is another by now.

        Cancelling the coroutine cancels the server's work.
        """
        self._end_waiting()
        document = cursor.document
        is_stale = version is not None and version != document.version
        if is_stale or not self._allows(document):
            return None
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting, self._cursor = waiting, cursor
        self._runner.tell(self._runner.policy.wanted, cursor.text, _version(document))
        try:
            await waiting
        except asyncio.CancelledError:
            if self._waiting is waiting:  # else a newer request has joined
                self._runner.tell(self._runner.policy.left)
            raise
        finally:
            if self._waiting is waiting:
                self._waiting = None
        return self._offer() if self._cursor is cursor else None

    def opened(self, document: Document) -> None:
        """Take a document whose edits are sent from now on."""
        if self._allows(document):
            self._recent.update(document.uri, unix_lines(document.source), now_ms())

    def changed(self, document: Document, edits: Sequence[Edit]) -> None:
        """Take the edits that were made to a document."""
        for edit in edits:
            self._survival.apply(document.uri, edit)
        if not edits or not self._allows(document):
            return
        self.opened(document)
        if self._cursor is not None and self._cursor.document is document:
            self._end_waiting()
            at = edits[-1].start + len(edits[-1].text)
            self._cursor = Cursor(document, at, at)
            self._runner.tell(self._runner.policy.changed, self._cursor.text, _version(document), Change.OTHER)

    def closed(self, uri: str) -> None:
        """Take that a document was closed."""
        self._survival.close(uri)
        self._recent.forget(uri)
        if self._cursor is not None and self._cursor.document.uri == uri:
            self._cursor = None
            self._runner.tell(self._runner.policy.left)

    def drawn(self, token: str) -> None:
        """Take that the editor shows an edit."""
        self._reports_drawn = True
        if self._offered is not None and self._offered.token == token:
            self._runner.tell(self._runner.policy.shown, self._offered.request)

    def accepted(self, token: str) -> None:
        """Take the command that the editor runs after it has put an edit in."""
        offered = self._offered
        if offered is None or offered.token != token:
            return
        document, text = offered.document, offered.edit.text
        start = document.positions.offset_at(types.Position(offered.edit.first, 0))
        end = start + raw_length(document.source, text)
        if text and unix_lines(document.source[start:end]) == text:
            report = self._runner.survival_report(offered.request)
            self._survival.watch(offered.request, document, start, end, report)
        at = start + raw_length(document.source, text.removesuffix("\n"))
        self._cursor = Cursor(document, at, at)
        self._runner.tell(self._runner.policy.accepted, offered.request, self._cursor.text, _version(document))

    def busy(self, is_busy: bool) -> None:
        """Take whether a completion is asked, which goes first."""
        self._runner.tell(self._runner.policy.busy, is_busy)

    def on_connected(self) -> None:
        """See LinkListener."""
        self._runner.on_connected()

    def on_away(self) -> None:
        """See LinkListener."""
        self._runner.on_away()

    def is_waiting(self) -> bool:
        """See runner.Editor."""
        return True

    def make_request(self, _ask: AskEdit) -> tuple[pb.CompleteRequest, float] | None:
        """See runner.Editor."""
        cursor = self._cursor
        assert cursor is not None
        text, document = cursor.text, cursor.document
        recent, version = self._recent.choose(), _version(document)
        request = edit_request_of(text, document.language_id, version, recent, self._snippets(text))
        return None if request is None else (request, self._settings.timeout_s)

    def on_text(self, number: int, text: str) -> None:
        """See runner.Editor. An edit comes with the end."""

    def on_ended(self, number: int, ended: Ended) -> None:
        """See runner.Editor."""
        edit, version = None, None
        if ended.end is not None and ended.end.HasField("edit"):
            found = ended.end.edit
            edit, version = LineEdit(found.first_line, found.line_count, found.text), found.document_version
        reason = NO_NEXT_EDITS if ended.error is not None and _writes_none(ended.error) else ended.reason
        more = {"edit": edit, "version": version, "retry_after_ms": ended.retry_after_ms}
        self._runner.tell(self._runner.policy.ended, number, reason, **more)

    def on_settled(self) -> None:
        """See runner.Editor. Answers the request that waits, unless more is to come."""
        if self._waiting is not None and not self._waiting.done() and not self._runner.policy.is_pending:
            self._waiting.set_result(None)

    def _make_runner(self) -> Runner[NextEditPolicy, ShowEdit]:
        return Runner(NextEditPolicy(), self._session, self)

    def _allows(self, document: Document) -> bool:
        return self._settings.why_not(document.uri, document.language_id, document.folders) is None

    def _end_waiting(self) -> None:
        """End the request that waits: the text that it was for is another by now."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = None

    def _offer(self) -> OfferedEdit | None:
        """Return what is shown, if something is."""
        shown, cursor = self._runner.shown, self._cursor
        if shown is None or cursor is None:
            return None
        if self._offered is None or self._offered.request != shown.request:
            token = f"edit-{next(self._tokens)}"
            self._offered = OfferedEdit(token, shown.request, cursor.document, shown.version, shown.edit)
        if not self._reports_drawn:
            self._runner.tell(self._runner.policy.shown, shown.request)
        return self._offered


def _version(document: Document) -> int:
    return document.version or 0


def _writes_none(error: ServiceError) -> bool:
    is_mode_unknown = isinstance(error, InvalidArgumentError) and any(each.field == "mode" for each in error.violations)
    return error.reason == _NO_NEXT_EDITS or is_mode_unknown
