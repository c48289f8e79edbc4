"""What the completer asks, answers and reports, in virtual time and on a session that is not real."""

import asyncio
from collections.abc import Sequence

import pytest

from completion.v1 import completion_pb2 as pb
from completion_client import DeadlineExceededError, ServiceError
from completion_lsp.completer import Completer, Offered
from completion_lsp.cursor import Cursor
from completion_lsp.documents import Edit
from completion_lsp.settings import Settings
from tests.support.lsp_sessions import ANSWERS_AFTER_S, EditorUser, Session, document_of, replace_all
from tests.support.scripted import in_virtual_time

ANSWER = "alpha(beta)\nnext_line()"


def answer(request: pb.CompleteRequest) -> pb.End:
    text = ANSWER if request.trigger != pb.TRIGGER_PREFETCH else ""
    return pb.End(finish_reason=pb.FINISH_REASON_STOP, text=text)


class User(EditorUser):
    def __init__(self, text: str = "x = ", settings: Settings | None = None) -> None:
        super().__init__(answer, text)
        self.completer = Completer(lambda: self.session, settings or Settings())  # type: ignore[arg-type,return-value]
        self.completer.on_connected()

    def changed(self, edits: Sequence[Edit]) -> None:
        self.completer.changed(self.document, edits)

    async def ask(self, *, is_explicit: bool = False) -> Offered | None:
        at = len(self.document.source)
        return await self.completer.complete(Cursor(self.document, at, at), is_explicit=is_explicit)

    async def asking(self, *, is_explicit: bool = False) -> "asyncio.Task[Offered | None]":
        """Ask, and return when the request may have been sent."""
        task = asyncio.create_task(self.ask(is_explicit=is_explicit))
        await asyncio.sleep(0.01)
        return task

    async def shown(self) -> str:
        (offer,) = await self.ask() or ()
        return offer.text

    async def accept(self) -> None:
        """Accept an answer to the present text, and forget its feedback."""
        (offer,) = await self.ask() or ()
        self.type(ANSWER)
        self.completer.accepted(offer.token)
        self.session.feedback.clear()

    @property
    def survived(self) -> list[tuple[int, float]]:
        return [(each.survived_after_s, round(each.survived_share, 2)) for each in self.session.feedback]


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
    busy: list[bool] = []
    user.completer.on_busy = busy.append
    user.type("a")
    await asyncio.sleep(5)
    assert user.session.requests == []
    user.type("b")
    asking = await user.asking()
    assert len(user.session.requests) == (0 if delay_ms == 50 else 1)
    assert busy[-1] is (delay_ms != 50), "next edits hear whether a completion is asked"
    await asking
    assert not busy[-1]
    assert [each.prefix for each in user.session.requests] == ["x = ab"]


@in_virtual_time
async def test_a_newer_request_and_a_change_end_the_one_before() -> None:
    user = User()
    first = await user.asking(is_explicit=True)
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
        asking = await user.asking(is_explicit=True)
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
    await user.accept()
    await asyncio.sleep(31)
    user.edit(0, 0, "# above\n")
    start = user.document.source.index("\nnext_line")
    user.edit(start, start + len("\nnext_line()"), "")
    await asyncio.sleep(60)
    user.edit(0, len(user.document.source), "")
    await asyncio.sleep(300)
    assert user.survived == [(30, 1.0), (90, 0.48), (180, 0.0), (360, 0.0)]
    assert {each.sequence for each in user.session.feedback} == {1}


@pytest.mark.parametrize("is_closed", [False, True], ids=["very much text replaced it", "the document was closed"])
@in_virtual_time
async def test_nothing_is_reported_of_a_text_that_can_not_be_compared(is_closed: bool) -> None:
    user = User()
    await user.accept()
    if is_closed:
        user.completer.closed(user.document.uri)
    else:
        user.edit(0, len(user.document.source), "new text\n" * 100_000)
    await asyncio.sleep(400)
    assert user.session.feedback == []


@in_virtual_time
async def test_a_text_that_is_accepted_word_by_word_is_measured_as_one() -> None:
    user = User()
    await user.shown()
    for word in ("alpha", "(beta)", "\nnext_line()"):
        user.type(word)
        await user.ask()
    assert [kind for kind, _ in user.session.kinds].count("SHOWN") == 1
    user.session.feedback.clear()
    user.edit(user.document.source.index("alpha") + len("alpha"), len(user.document.source), "")
    await asyncio.sleep(31)
    assert user.survived == [(30, round(len("alpha") / len(ANSWER), 2))]


@in_virtual_time
async def test_a_request_waits_for_the_first_connection_and_not_for_a_later_one() -> None:
    user = User()
    sessions: list[Session] = []
    user.completer = Completer(lambda: sessions[0] if sessions else None, Settings())  # type: ignore[arg-type,return-value]
    asking = await user.asking()
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
        user.document = document_of(name, "alpha(beta, gamma) = ")
        await user.ask()
    assert [each.uri for each in user.session.requests[-1].snippets] == ["file:///project/a.py"]
    assert len(user.session.requests) == 2


@pytest.mark.parametrize("is_closed", [False, True], ids=["changed settings", "closed document"])
@in_virtual_time
async def test_text_that_may_not_be_sent_any_more_does_not_go_along(is_closed: bool) -> None:
    user = User("def alpha(beta, gamma):\n    ")
    first = user.document
    (before,) = await user.ask() or ()
    user.document = document_of("b.py", "alpha(beta, gamma) = ")
    await user.ask()
    assert user.session.requests[-1].snippets
    if is_closed:
        user.completer.closed(first.uri)
    else:
        user.completer.use(Settings(exclude=("a.py",)))
    user.type("\ngamma = ")
    (after,) = await user.ask() or ()
    assert before.token != after.token, "a token from before names no later offer"
    assert user.session.requests[-1].prefix.endswith("\ngamma = ")
    assert not user.session.requests[-1].snippets


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


@pytest.mark.parametrize(("error", "num_requests"), [(DeadlineExceededError("late"), 2), (ServiceError("failed"), 1)])
@in_virtual_time
async def test_a_late_request_is_followed_by_no_wait_and_a_failed_one_by_one(
    error: ServiceError, num_requests: int
) -> None:
    user = User()
    user.session.error = error
    assert await user.ask() == ()
    user.session.error = None
    user.type("q")
    asking = await user.asking()
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
    user.session.error = ServiceError("failed", retry_after_ms=10_000)
    assert await user.ask() == ()
    user.type("b")
    asking = await user.asking()
    assert not asking.done(), "its request comes after the back-off"
    user.edit(len("x = a"), len("x = ab"), "")
    async with asyncio.timeout(1):
        assert await user.ask() == ()


@in_virtual_time
async def test_an_edit_of_another_document_neither_ends_a_request_nor_accepts_its_answer() -> None:
    user = User()
    asking = await user.asking()
    other = document_of("b.py", "y = 1")
    user.completer.changed(other, replace_all(other, "y = 2"))
    (offer,) = await asking or ()
    assert offer.text == ANSWER
    assert len(user.session.requests) == 1
    user.document = document_of("c.py", "y = ")
    user.type(ANSWER)
    assert offer.num_accepted == 0
    assert user.session.kinds == [("SHOWN", 0)]
