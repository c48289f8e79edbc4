"""What the completer asks, answers and reports, in virtual time and on a session that is not real."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from lsprotocol import types
from pygls.workspace import TextDocument

from completion.v1 import completion_pb2 as pb
from completion_client import Completion, DeadlineExceededError, ServiceError
from completion_lsp.completer import Completer, Offered
from completion_lsp.cursor import Cursor
from completion_lsp.documents import Document
from completion_lsp.settings import Settings
from tests.support.scripted import in_virtual_time

ANSWER = "alpha(beta)\nnext_line()"
ANSWERS_AFTER_S = 0.2


class Pending:
    """The answer of `Session` to a request, as completion_client's PendingCompletion."""

    def __init__(self, sequence: int, text: str) -> None:
        self.sequence = sequence
        self.is_cancelled = False
        self._text = text
        self.error: ServiceError | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        await asyncio.sleep(ANSWERS_AFTER_S)
        if not self.is_cancelled:
            yield self._text

    async def result(self) -> Completion:
        if self.error is not None:
            raise self.error
        reason = pb.FINISH_REASON_CANCELLED if self.is_cancelled else pb.FINISH_REASON_STOP
        return Completion(self._text, pb.End(finish_reason=reason), None, (), 0.0)

    def cancel_nowait(self) -> None:
        self.is_cancelled = True


class Session:
    """Takes requests and feedback."""

    def __init__(self) -> None:
        self.requests: list[pb.CompleteRequest] = []
        self.pending: list[Pending] = []
        self.timeouts_s: list[float] = []
        self.feedback: list[pb.ReportFeedbackRequest] = []

    def submit_nowait(self, request: pb.CompleteRequest, *, timeout_s: float) -> Pending:
        self.requests.append(request)
        self.timeouts_s.append(timeout_s)
        text = ANSWER if request.trigger != pb.TRIGGER_PREFETCH else ""
        self.pending.append(Pending(len(self.requests), text))
        return self.pending[-1]

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        self.feedback.append(feedback)

    @property
    def kinds(self) -> list[tuple[str, int]]:
        names = (pb.FeedbackKind.Name(each.kind).removeprefix("FEEDBACK_KIND_") for each in self.feedback)
        return list(zip(names, (each.accepted_characters for each in self.feedback), strict=True))


class User:
    """An editor with one document."""

    def __init__(self, text: str = "x = ", settings: Settings | None = None) -> None:
        self.session = Session()
        self.completer = Completer(lambda: self.session, settings or Settings())  # type: ignore[arg-type,return-value]
        self.document = Document(TextDocument("file:///project/a.py", text, 1, "python"))
        self.completer.on_connected()

    def edit(self, start: int, end: int, text: str) -> None:
        positions = self.document.positions
        place = types.Range(positions.position_at(start), positions.position_at(end))
        self.document.apply_change(types.TextDocumentContentChangePartial(range=place, text=text))
        self.completer.changed(self.document, self.document.take_edits())

    def type(self, text: str) -> None:
        end = len(self.document.source)
        self.edit(end, end, text)

    async def ask(self, *, is_explicit: bool = False) -> Offered | None:
        at = len(self.document.source)
        return await self.completer.complete(Cursor(self.document, at, at), is_explicit=is_explicit)

    async def shown(self) -> str:
        (offer,) = await self.ask() or ()
        return offer.text


@in_virtual_time
async def test_typed_text_is_answered_from_memory() -> None:
    user = User()
    assert await user.shown() == ANSWER
    user.type("al")
    assert await user.shown() == ANSWER[2:]
    assert len(user.session.requests) == 1


@pytest.mark.parametrize("delay_ms", [None, 0, 50])
@in_virtual_time
async def test_a_request_waits_after_a_key_and_changes_alone_ask_nothing(delay_ms: int | None) -> None:
    user = User(settings=Settings(delay_ms=delay_ms))
    user.type("a")
    await asyncio.sleep(5)
    assert user.session.requests == []
    user.type("b")
    asking = asyncio.create_task(user.ask())
    await asyncio.sleep(0.01)
    assert len(user.session.requests) == (0 if delay_ms == 50 else 1)
    await asking
    assert [each.prefix for each in user.session.requests] == ["x = ab"]


@in_virtual_time
async def test_next_edits_hear_whether_a_completion_is_asked() -> None:
    user = User()
    heard: list[bool] = []
    user.completer.on_busy = heard.append
    asking = asyncio.create_task(user.ask(is_explicit=True))
    await asyncio.sleep(0.01)
    assert heard[-1]
    await asking
    assert not heard[-1]


@in_virtual_time
async def test_a_newer_request_and_a_change_end_the_one_before() -> None:
    user = User()
    first = asyncio.create_task(user.ask(is_explicit=True))
    await asyncio.sleep(0)
    second = asyncio.create_task(user.ask(is_explicit=True))
    async with asyncio.timeout(ANSWERS_AFTER_S / 2):
        assert await first is None
    user.edit(0, 1, "")
    assert await second is None
    assert user.session.pending
    assert all(each.is_cancelled for each in user.session.pending)


@in_virtual_time
async def test_a_cancelled_request_ends_on_the_server_unless_it_is_asked_for_again_at_once() -> None:
    user = User()
    for asks_again in (True, False):
        asking = asyncio.create_task(user.ask(is_explicit=True))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        if asks_again:
            assert await user.shown() == ANSWER
            assert not user.session.pending[0].is_cancelled
            user.type("\n\nq")
        else:
            await asyncio.sleep(1)
            assert user.session.pending[-1].is_cancelled


@in_virtual_time
async def test_feedback_comes_from_edits_commands_and_notifications_but_once() -> None:
    user = User()
    await user.shown()
    user.type("alpha")
    (offer,) = await user.ask() or ()
    assert offer.text == "(beta)\nnext_line()"
    user.type("(beta)")
    (offer,) = await user.ask() or ()
    user.completer.accepted_units(offer.token, 1)
    user.type("\nnext_line()")
    user.completer.accepted(offer.token)
    assert user.session.kinds == [
        ("SHOWN", 0),
        ("ACCEPTED_WORD", 5),
        ("ACCEPTED_LINE", 6),
        ("ACCEPTED_LINE", 1),
        ("ACCEPTED", 11),
    ]
    assert sum(count for _, count in user.session.kinds) == len(ANSWER)


@in_virtual_time
async def test_how_much_of_an_accepted_text_is_still_there_is_reported() -> None:
    user = User()
    (offer,) = await user.ask() or ()
    user.type(ANSWER)
    user.completer.accepted(offer.token)
    user.session.feedback.clear()
    await asyncio.sleep(31)
    user.edit(0, 0, "# above\n")
    start = user.document.source.index("\nnext_line")
    user.edit(start, start + len("\nnext_line()"), "")
    await asyncio.sleep(60)
    user.edit(0, len(user.document.source), "")
    await asyncio.sleep(300)
    reports = [(each.survived_after_s, round(each.survived_share, 2)) for each in user.session.feedback]
    assert reports == [(30, 1.0), (90, 0.48), (180, 0.0), (360, 0.0)]
    assert {each.sequence for each in user.session.feedback} == {1}


@in_virtual_time
async def test_nothing_is_reported_of_a_text_that_very_much_text_replaced() -> None:
    user = User()
    (offer,) = await user.ask() or ()
    user.type(ANSWER)
    user.completer.accepted(offer.token)
    user.session.feedback.clear()
    user.edit(0, len(user.document.source), "new text\n" * 100_000)
    await asyncio.sleep(400)
    assert user.session.feedback == []


@in_virtual_time
async def test_nothing_is_reported_of_a_closed_document() -> None:
    user = User()
    (offer,) = await user.ask() or ()
    user.type(ANSWER)
    user.completer.accepted(offer.token)
    user.session.feedback.clear()
    user.completer.closed(user.document.uri)
    await asyncio.sleep(400)
    assert user.session.feedback == []


@in_virtual_time
async def test_a_request_waits_for_the_first_connection_and_not_for_a_later_one() -> None:
    user = User()
    sessions: list[Session] = []
    user.completer = Completer(lambda: sessions[0] if sessions else None, Settings())  # type: ignore[arg-type,return-value]
    asking = asyncio.create_task(user.ask())
    await asyncio.sleep(3)
    assert not asking.done()
    sessions.append(user.session)
    user.completer.on_connected()
    assert await asking
    user.completer.on_away()
    user.type("\nq")
    assert await user.ask() == ()
    user.completer.on_connected()
    assert await user.ask()


@in_virtual_time
async def test_the_text_of_other_documents_goes_along_but_not_of_excluded_ones() -> None:
    user = User("def alpha(beta, gamma):\n    ")
    await user.ask()
    for name in (".env", "b.py"):
        user.document = Document(TextDocument(f"file:///project/{name}", "alpha(beta, gamma) = ", 1, "python"))
        await user.ask()
    assert [each.uri for each in user.session.requests[-1].snippets] == ["file:///project/a.py"]
    assert len(user.session.requests) == 2


@in_virtual_time
async def test_text_that_changed_settings_exclude_or_of_a_closed_document_does_not_go_along() -> None:
    for is_closed in (False, True):
        user = User("def alpha(beta, gamma):\n    ")
        first = user.document
        await user.ask()
        user.document = Document(TextDocument("file:///project/b.py", "alpha(beta, gamma) = ", 1, "python"))
        await user.ask()
        assert user.session.requests[-1].snippets
        if is_closed:
            user.completer.closed(first.uri)
        else:
            user.completer.use(Settings(exclude=("a.py",)))
        user.type("\ngamma = ")
        await user.ask()
        assert user.session.requests[-1].prefix.endswith("\ngamma = ")
        assert not user.session.requests[-1].snippets


@in_virtual_time
async def test_a_token_from_before_changed_settings_names_no_later_offer() -> None:
    user = User()
    (before,) = await user.ask() or ()
    user.completer.use(Settings(multi_line=False))
    (after,) = await user.ask() or ()
    assert before.token != after.token


@in_virtual_time
async def test_line_ends_are_those_of_the_answer() -> None:
    user = User("a\r\nb = ")
    (offer,) = await user.ask() or ()
    assert user.session.requests[0].prefix == "a\nb = "
    user.type(ANSWER.replace("\n", "\r\n"))
    user.completer.accepted(offer.token)
    assert user.session.kinds == [("SHOWN", 0), ("ACCEPTED", len(ANSWER))]


@in_virtual_time
async def test_half_a_character_does_not_stop_requests() -> None:
    user = User("x = '\ud83d' + ")
    assert await user.shown() == ANSWER
    assert user.session.requests[0].prefix == "x = '\ufffd' + "


@in_virtual_time
async def test_a_late_request_is_followed_by_no_wait_and_a_failed_one_by_one() -> None:
    for error, num_requests in ((DeadlineExceededError("late"), 2), (ServiceError("failed"), 1)):
        user = User()
        asking = asyncio.create_task(user.ask())
        await asyncio.sleep(0.01)
        user.session.pending[0].error = error
        assert await asking == ()
        user.type("q")
        asking = asyncio.create_task(user.ask())
        await asyncio.sleep(0.5)
        assert len(user.session.requests) == num_requests
        await asking


@in_virtual_time
async def test_only_what_the_user_asks_for_may_take_long() -> None:
    user = User()
    await user.ask()
    user.type("q")
    await user.ask(is_explicit=True)
    assert user.session.timeouts_s == [2.0, 5.0]


@in_virtual_time
async def test_nobody_waits_for_a_request_that_is_not_wanted_any_more() -> None:
    user = User()
    user.type("a")
    asking = asyncio.create_task(user.ask())
    await asyncio.sleep(0.01)
    user.session.pending[0].error = ServiceError("failed", retry_after_ms=10_000)
    assert await asking == ()
    user.type("b")
    asking = asyncio.create_task(user.ask())
    await asyncio.sleep(0.1)
    assert not asking.done(), "its request comes after the back-off"
    user.edit(len("x = a"), len("x = ab"), "")
    async with asyncio.timeout(1):
        assert await user.ask() == ()


@in_virtual_time
async def test_an_edit_of_another_document_leaves_the_request_that_waits() -> None:
    user = User()
    other = Document(TextDocument("file:///project/b.py", "y = 1", 1, "python"))
    asking = asyncio.create_task(user.ask())
    await asyncio.sleep(0.01)
    other.apply_change(types.TextDocumentContentChangeWholeDocument(text="y = 2"))
    user.completer.changed(other, other.take_edits())
    (offer,) = await asking or ()
    assert offer.text == ANSWER
    assert len(user.session.requests) == 1


@in_virtual_time
async def test_the_same_insertion_into_another_document_is_no_acceptance() -> None:
    user = User()
    (offer,) = await user.ask() or ()
    user.document = Document(TextDocument("file:///project/b.py", "y = ", 1, "python"))
    user.type(ANSWER)
    assert offer.num_accepted == 0
    assert user.session.kinds == [("SHOWN", 0)]


@in_virtual_time
async def test_a_text_that_is_accepted_word_by_word_is_measured_as_one() -> None:
    user = User()
    await user.shown()
    for word in ("alpha", "(beta)", "\nnext_line()"):
        user.type(word)
        await user.ask()
    assert [kind for kind, _ in user.session.kinds].count("SHOWN") == 1
    user.session.feedback.clear()
    start = user.document.source.index("alpha")
    user.edit(start + len("alpha"), len(user.document.source), "")
    await asyncio.sleep(31)
    (report,) = user.session.feedback
    assert (report.survived_after_s, round(report.survived_share, 2)) == (30, round(len("alpha") / len(ANSWER), 2))
