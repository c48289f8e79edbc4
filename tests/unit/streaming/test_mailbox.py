"""The one-slot mailbox."""

import asyncio
import tracemalloc
from dataclasses import replace

import pytest

from completion_server.core.outcome import Delta, End, FinishReason, Outcome
from completion_server.streaming.mailbox import Mailbox
from loadtest.simulation import virtual_time

END = End(Outcome(FinishReason.STOP))


async def test_unread_text_is_merged_into_one_delta() -> None:
    mailbox = Mailbox()
    for text in ["de", "", "f ", "ü()"]:
        mailbox.put_nowait(text)
    assert mailbox.num_pending == 7
    assert await mailbox.get() == Delta("def ü()")
    assert mailbox.num_pending == 0


async def test_the_end_brings_pending_text_along() -> None:
    mailbox = Mailbox()
    mailbox.put_nowait("a")
    mailbox.close_nowait(END)
    assert mailbox.is_closed
    assert await mailbox.get() == replace(END, text="a")


def test_between_two_deltas_there_is_a_pause_but_not_before_the_first_or_the_end() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        mailbox, taken, began = Mailbox(pause_s=0.02), [], loop.time()

        async def take_all() -> None:
            while not taken or not isinstance(taken[-1][1], End):
                event = await mailbox.get()
                taken.append((round(loop.time() - began, 3), event))

        reader = asyncio.create_task(take_all())
        for text in "abcdef":
            mailbox.put_nowait(text)
            await asyncio.sleep(0.008)
        mailbox.close_nowait(END)
        await reader
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


async def test_a_late_listener_is_called_at_once_and_not_after_ignore() -> None:
    mailbox, calls = Mailbox(), []
    mailbox.put_nowait("a")
    mailbox.listen(lambda: calls.append("event"))
    assert calls == ["event"]
    with pytest.raises(RuntimeError, match="two readers"):
        mailbox.listen(lambda: None)
    mailbox.ignore()
    mailbox.close_nowait(END)
    assert calls == ["event"]


async def test_a_waiting_reader_gets_new_text() -> None:
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put_nowait("")
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.put_nowait("a")
    assert await reader == Delta("a")
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.close_nowait(END)
    assert await reader == END


async def test_discarded_text_is_never_read() -> None:
    mailbox = Mailbox()
    mailbox.put_nowait("stale")
    mailbox.discard_pending_nowait()
    assert mailbox.get_nowait() is None
    mailbox.put_nowait("stale")
    mailbox.close_nowait(END)
    mailbox.discard_pending_nowait()
    assert await mailbox.get() == END


async def test_discarding_under_a_waiting_reader_leaves_it_waiting() -> None:
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put_nowait("stale")
    mailbox.discard_pending_nowait()
    await asyncio.sleep(0)
    assert not reader.done()
    mailbox.put_nowait("fresh")
    assert await reader == Delta("fresh")


async def test_a_cancelled_wait_loses_nothing() -> None:
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put_nowait("a")
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert await mailbox.get() == Delta("a")


async def test_misuse_is_an_error() -> None:
    mailbox = Mailbox()
    mailbox.close_nowait(END)
    with pytest.raises(RuntimeError, match="closed twice"):
        mailbox.close_nowait(END)
    with pytest.raises(RuntimeError, match="closed mailbox"):
        mailbox.put_nowait("a")
    assert await mailbox.get() == END
    with pytest.raises(RuntimeError, match="past its end"):
        await mailbox.get()


async def test_a_second_reader_is_an_error() -> None:
    mailbox = Mailbox()
    reader = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="two readers"):
        await mailbox.get()
    mailbox.put_nowait("a")
    assert await reader == Delta("a")


def test_a_thousand_unread_mailboxes_hold_their_text_and_little_else() -> None:
    mailboxes = [Mailbox() for _ in range(1000)]
    tracemalloc.start()
    for _ in range(500):
        for mailbox in mailboxes:
            mailbox.put_nowait("abcd")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1000 * (500 * 4 + 200)
