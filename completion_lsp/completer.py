"""Answers an editor's requests by the policy of `completion_client.editing`.

A language server is asked for text and told of changes. Both are events to the policy; a request of the editor is
answered as soon as the policy has nothing to wait for.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from completion.v1 import completion_pb2 as pb
from completion_client import Session
from completion_client.editing import (
    Ask,
    Change,
    EditingPolicy,
    EditingSettings,
    Show,
    Snippet,
    SnippetRing,
    Text,
    Trigger,
)
from completion_lsp.calls import Ended
from completion_lsp.cursor import Cursor, kind_of
from completion_lsp.documents import Document, Edit
from completion_lsp.offers import Offer, Offers, looks_accepted
from completion_lsp.positions import raw_length, unix_lines
from completion_lsp.requests import request_of
from completion_lsp.runner import Runner
from completion_lsp.settings import Settings
from completion_lsp.survival import Survival

_CANCEL_AFTER_S = 0.05
"""An editor that cancels a request because of a key asks again at once, often for what is being generated."""
_LEAST_DELAY_MS = 1
"""Without a delay the policy would ask at each change, before the editor does."""
_AUTOMATIC_TIMEOUT_S = 2.0
"""At most, for what no user asked: while a request is open, later keys may ask nothing."""
_WHOLE = ("stop", "length")
_UNDERSTOOD = (Change.TYPED, Change.PASTED, Change.DELETED)
"""Changes after which the policy knows whether to ask."""

Offered = tuple[Offer, ...]


class Completer:
    """Decides for one editor. Use it in one event loop."""

    def __init__(self, session: Callable[[], Session | None], settings: Settings) -> None:
        """Ask the server by the session that `session` returns, if there is one."""
        self.infers_acceptance = True
        """Whether an insertion of a part of what is shown may be an acceptance that the editor does not report."""
        self._is_starting = True
        """Until the server was reached or not, requests wait."""
        self._reports_drawn = False
        self.on_busy: Callable[[bool], None] = lambda _is_busy: None
        """Hears whether a completion is asked, perhaps more often than that changes."""
        self._session = session
        self._settings = settings
        self._runner = self._make_runner()
        self._offers, self._ring, self._survival = Offers(), SnippetRing(), Survival()
        self._offer: Offer | None = None
        """The last one."""
        self._cursor: Cursor | None = None
        self._text: Text | None = None
        """The document at the cursor as the policy knows it; None if the policy is to ask again."""
        self._change = Change.OTHER
        self._waiting: asyncio.Future[Offered | None] | None = None

    def use(self, settings: Settings) -> None:
        """Begin anew with other settings, without text of documents that these may exclude."""
        self._end_waiting()
        self._runner.stop()
        self._settings = settings
        self._runner, self._ring = self._make_runner(), SnippetRing()
        self._offers.forget()
        self._offer = self._cursor = self._text = None

    async def complete(self, cursor: Cursor, *, is_explicit: bool = False) -> Offered | None:
        """Return what to show at the cursor, if there is something. None if a newer request or a change ended this one.

        Cancelling the coroutine cancels the server's work, unless the editor asks again at once.
        """
        self._end_waiting()
        if self._why_not(cursor.document):
            return ()
        waiting: asyncio.Future[Offered | None] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        text = cursor.text
        is_understood = text == self._text and self._change in _UNDERSTOOD
        self._go_to(cursor, text)
        if is_explicit:
            self._runner.tell(self._runner.policy.explicit, text)
        elif is_understood:
            self._runner.tell(self._runner.policy.moved, text)
        else:
            self._change = Change.PASTED
            self._runner.tell(self._runner.policy.changed, text, Change.PASTED)
        try:
            return await waiting
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_later(_CANCEL_AFTER_S, self._leave_unless_wanted, cursor)
            raise
        finally:
            if self._waiting is waiting:
                self._waiting = None

    def changed(self, document: Document, edits: Sequence[Edit]) -> None:
        """Take the edits that were made to a document."""
        for edit in edits:
            self._survival.apply(document.uri, edit)
        if not edits or self._why_not(document):
            return
        if self._waiting is not None and self._cursor is not None and self._cursor.document is not document:
            return  # the user does not type there
        self._end_waiting()
        at = edits[-1].start + len(edits[-1].text)
        before, cursor = self._cursor, Cursor(document, at, at)
        self._go_to(cursor, cursor.text)
        is_one = before is not None and before.document is document and len(edits) == 1
        if self.infers_acceptance and before and is_one and self._accept_inserted(before, edits[0]):
            return
        self._change = kind_of(edits)
        self._runner.tell(self._runner.policy.changed, cursor.text, self._change)

    def accepted(self, token: str) -> None:
        """Take the command that the editor runs after it has put in an offer."""
        if offer := self._offers.find(token):
            self._accept(offer, offer.accept(len(offer.text)))

    def accepted_units(self, token: str, units: int) -> None:
        """Take that the editor has put in the beginning of an offer, in units of UTF-16 in all."""
        if offer := self._offers.find(token):
            self._accept(offer, offer.accept_units(units))

    def drawn(self, token: str) -> None:
        """Take that the editor shows an offer."""
        self._reports_drawn = True
        if offer := self._offers.find(token):
            self._runner.tell(self._runner.policy.shown, offer.request)

    def focused(self, uri: str) -> None:
        """Take that the user looks at a document."""
        if self._cursor and self._cursor.document.uri != uri:
            self._leave()

    def closed(self, uri: str) -> None:
        """Take that a document was closed."""
        self._survival.close(uri)
        self._ring.close(uri)
        if self._cursor and self._cursor.document.uri == uri:
            self._leave()

    def on_connected(self) -> None:
        """See LinkListener."""
        self._text = None
        self._runner.on_connected()
        if self._is_starting and self._waiting is not None and self._cursor is not None:
            self._runner.tell(self._runner.policy.changed, self._cursor.text, Change.PASTED)
        self._is_starting = False
        self.on_settled()

    def on_away(self) -> None:
        """See LinkListener."""
        self._is_starting = False
        self._runner.on_away()

    def snippets(self, text: Text) -> tuple[Snippet, ...]:
        """Return the snippets for a request at the cursor."""
        return self._ring.choose(text)

    def is_waiting(self) -> bool:
        """See runner.Editor."""
        return self._waiting is not None

    def make_request(self, ask: Ask) -> tuple[pb.CompleteRequest, float]:
        """See runner.Editor."""
        cursor, settings = self._cursor, self._settings
        assert cursor is not None
        text, document = cursor.text, cursor.document
        whole = replace(text, before=document.earlier_cells + text.before)
        request = request_of(whole, document.language_id, ask, self.snippets(text), settings.multi_line)
        is_explicit = ask.trigger is Trigger.EXPLICIT
        return request, settings.timeout_s if is_explicit else min(settings.timeout_s, _AUTOMATIC_TIMEOUT_S)

    def on_text(self, number: int, text: str) -> None:
        """See runner.Editor."""
        self._runner.tell(self._runner.policy.received, number, text)

    def on_ended(self, number: int, ended: Ended) -> None:
        """See runner.Editor. After a request without a whole answer the next one is to ask again."""
        if ended.reason not in _WHOLE:
            self._text = None
        self._runner.tell(self._runner.policy.ended, number, ended.reason, retry_after_ms=ended.retry_after_ms)

    def on_settled(self) -> None:
        """See runner.Editor. Answers the request that waits, unless more is to come."""
        self.on_busy(self._runner.is_asking)
        waiting, cursor, shown = self._waiting, self._cursor, self._runner.shown if self._runner.is_final else None
        if waiting is None or waiting.done() or cursor is None:
            return
        if shown is None:
            if not self._runner.policy.is_pending and not self._is_starting:
                waiting.set_result(())
            return
        end = cursor.end + shown.replaced
        offer = self._offers.make(shown.request, cursor.document.uri, cursor.start, end, cursor.known, shown.text)
        self._offer = offer
        waiting.set_result((offer,))
        if not self._reports_drawn:
            self._runner.tell(self._runner.policy.shown, shown.request)

    def _make_runner(self) -> Runner[EditingPolicy, Show]:
        delay_ms = self._settings.delay_ms
        least_ms = max(_LEAST_DELAY_MS, delay_ms or 0)
        policy = EditingPolicy(EditingSettings(follows_rhythm=delay_ms is None, delay_min_ms=least_ms))
        return Runner(policy, self._session, self)

    def _why_not(self, document: Document) -> str | None:
        return self._settings.why_not(document.uri, document.language_id, document.folders)

    def _end_waiting(self) -> None:
        """End the request that waits: the text that it was for is another by now."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = None

    def _go_to(self, cursor: Cursor, text: Text) -> None:
        if self._cursor and self._cursor.is_far_from(cursor):
            self._ring.leave(self._cursor.text)
        self._cursor, self._text = cursor, text

    def _leave(self) -> None:
        self._cursor = self._text = None
        self._runner.tell(self._runner.policy.left)

    def _leave_unless_wanted(self, cursor: Cursor) -> None:
        if self._waiting is None and self._cursor is cursor:
            self._leave()

    def _accept_inserted(self, before: Cursor, edit: Edit) -> bool:
        """Take an insertion at the cursor as an acceptance, if it looks like one; return whether it does."""
        offer, shown, inserted = self._offer, self._runner.shown, unix_lines(edit.text)
        if not (offer and shown and offer.request == shown.request and offer.uri == before.document.uri):
            return False
        if not edit.start == edit.end == before.start == before.end or not looks_accepted(shown.text, inserted):
            return False
        offer.accept(len(offer.text) - len(shown.text) + len(inserted))
        self._accept(offer, inserted)
        return True

    def _accept(self, offer: Offer, inserted: str) -> None:
        cursor = self._cursor
        if not inserted or cursor is None or cursor.document.uri != offer.uri:
            return
        document = cursor.document
        end = offer.end_in(document.source)
        if end is not None:
            cursor = Cursor(document, end, end)
            start = end - raw_length(document.source, inserted)
            report = self._runner.survival_report(offer.request)
            self._survival.watch(offer.request, document, start, end, report)
        self._go_to(cursor, cursor.text)
        self._change = Change.PASTED
        self._runner.tell(self._runner.policy.accepted, offer.request, cursor.text, offer.extent, inserted)
