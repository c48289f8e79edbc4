"""The one-slot mailbox."""

import asyncio
from dataclasses import replace

import pytest

from completion_server.core.outcome import Delta, End, FinishReason, Outcome
from completion_server.requests.mailbox import Mailbox
from loadtest.simulation import virtual_time

END = End(Outcome(FinishReason.STOP))


def test_the_end_brings_pending_text_along() -> None:
    mailbox = Mailbox()
    mailbox.put_nowait("a")
    mailbox.close_nowait(END)
    assert mailbox.get_nowait() == replace(END, text="a")


def test_between_two_deltas_there_is_a_pause_but_not_before_the_first_or_the_end() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        mailbox, taken, began = Mailbox(pause_s=0.02), [], loop.time()
        mailbox.listen(lambda: taken.append((round(loop.time() - began, 3), mailbox.get_nowait())))
        for text in "abcdef":
            mailbox.put_nowait(text)
            await asyncio.sleep(0.008)
        mailbox.close_nowait(END)
        assert taken == [
            (0.0, Delta("a")), (0.02, Delta("bc")), (0.04, Delta("de")), (0.048, replace(END, text="f")),
        ]  # fmt: skip

    virtual_time.run(scenario())


def test_the_callback_is_not_called_after_a_pause_without_text() -> None:
    async def scenario() -> None:
        mailbox, calls = Mailbox(pause_s=0.02), []
        mailbox.listen(lambda: calls.append(asyncio.get_running_loop().time()))
        mailbox.put_nowait("a")
        assert mailbox.get_nowait() == Delta("a")
        mailbox.put_nowait("stale")
        mailbox.discard_pending_nowait()
        await asyncio.sleep(0.05)
        assert (len(calls), mailbox.get_nowait()) == (1, None)
        mailbox.put_nowait("b")
        assert (len(calls), mailbox.get_nowait()) == (2, Delta("b"))

    virtual_time.run(scenario())


def test_a_late_listener_is_called_at_once_and_not_after_ignore() -> None:
    mailbox, calls = Mailbox(), []
    mailbox.put_nowait("a")
    mailbox.listen(lambda: calls.append("event"))
    assert calls == ["event"]
    with pytest.raises(RuntimeError, match="two readers"):
        mailbox.listen(lambda: None)
    mailbox.ignore()
    mailbox.close_nowait(END)
    assert calls == ["event"]


def test_discarded_text_is_never_read() -> None:
    mailbox = Mailbox()
    mailbox.put_nowait("stale")
    mailbox.discard_pending_nowait()
    assert mailbox.get_nowait() is None
    mailbox.put_nowait("stale")
    mailbox.close_nowait(END)
    mailbox.discard_pending_nowait()
    assert mailbox.get_nowait() == END


def test_misuse_is_an_error() -> None:
    mailbox = Mailbox()
    mailbox.close_nowait(END)
    with pytest.raises(RuntimeError, match="closed twice"):
        mailbox.close_nowait(END)
    with pytest.raises(RuntimeError, match="closed mailbox"):
        mailbox.put_nowait("a")
    assert mailbox.get_nowait() == END
    with pytest.raises(RuntimeError, match="past its end"):
        mailbox.get_nowait()
