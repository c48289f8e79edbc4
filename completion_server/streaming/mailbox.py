"""The one-slot mailbox between a generation and whoever reads it.

The slot holds the text that the reader has not taken yet, as one string: a slow reader gets fewer and larger deltas,
and an unread mailbox costs no more than its completion's text. How much unread text is too much, and for how long, is
the producer's decision. A mailbox knows neither engine nor wire, and belongs to one event loop.
"""

import asyncio

from completion_server.core.outcome import Delta, End


class Mailbox:
    """Text from one producer to one reader, then exactly one End.

    A generation that goes on for another reader gets another mailbox: this one is then closed, with its own End.
    """

    def __init__(self) -> None:
        self._text = ""
        self._end: End | None = None
        self._is_end_taken = False
        self._is_being_read = False
        self._has_news = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether the End was put; the reader may not have taken it yet."""
        return self._end is not None

    @property
    def num_pending(self) -> int:
        """Characters put and not yet taken."""
        return len(self._text)

    def put_nowait(self, text: str) -> None:
        """Add text to what is not yet taken; "" is no event.

        Raises:
            RuntimeError: the mailbox is closed.

        """
        if self._end is not None:
            raise RuntimeError("text was put into a closed mailbox")
        if text:
            self._text += text
            self._has_news.set()

    def close_nowait(self, end: End) -> None:
        """Put the End, which follows the text not yet taken.

        Raises:
            RuntimeError: the mailbox is closed already.

        """
        if self._end is not None:
            raise RuntimeError("a mailbox was closed twice")
        self._end = end
        self._has_news.set()

    def discard_pending_nowait(self) -> None:
        """Drop the text not yet taken: nothing of it is to be sent any more."""
        self._text = ""
        if self._end is None:
            self._has_news.clear()

    def get_nowait(self) -> Delta | End | None:
        """Take the next event: all text put so far, else the End; None where there is neither yet.

        Raises:
            RuntimeError: the End was taken already.

        """
        if self._is_end_taken:
            raise RuntimeError("a mailbox was read past its end")
        if self._text:
            text, self._text = self._text, ""
            if self._end is None:
                self._has_news.clear()
            return Delta(text)
        self._is_end_taken = self._end is not None
        return self._end

    async def get(self) -> Delta | End:
        """Wait for the next event and take it. Cancelling the wait loses nothing.

        Raises:
            RuntimeError: the End was taken already, or another task is waiting.

        """
        if self._is_being_read:
            raise RuntimeError("a mailbox has two readers")
        self._is_being_read = True
        try:
            while (event := self.get_nowait()) is None:
                await self._has_news.wait()
            return event
        finally:
            self._is_being_read = False
