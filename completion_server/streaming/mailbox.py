"""The one-slot mailbox between a generation and whoever reads it.

The slot holds the text that the reader has not taken yet, as one string: a slow reader gets fewer and larger deltas,
and an unread mailbox costs no more than its completion's text. So does a quick reader, by choice: between two deltas
there is a pause, since every message costs more than what it says. The first text and the end never wait, and the end
brings the last text along. How much unread text is too much, and for how long, is the producer's decision. A mailbox
knows neither engine nor wire, and belongs to one event loop.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from completion_server.core.outcome import Delta, End


class Mailbox:
    """Text from one producer to one reader, then exactly one End.

    A generation that goes on for another reader gets another mailbox: this one is then closed, with its own End.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        """Have at least `pause_s` between two deltas."""
        self._pause_s = pause_s
        self._text = ""
        self._end: End | None = None
        self._is_end_taken = False
        self._pause: asyncio.TimerHandle | None = None
        self._on_news: Callable[[], None] | None = None

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
            if self._pause is None and self._on_news is not None:
                self._on_news()

    def close_nowait(self, end: End) -> None:
        """Put the End, which follows the text not yet taken.

        Raises:
            RuntimeError: the mailbox is closed already.

        """
        if self._end is not None:
            raise RuntimeError("a mailbox was closed twice")
        self._end = end
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._on_news is not None:
            self._on_news()

    def discard_pending_nowait(self) -> None:
        """Drop the text not yet taken: nothing of it is to be sent any more."""
        self._text = ""

    def listen(self, on_news: Callable[[], None]) -> None:
        """Have `on_news` called whenever there may be something to take, and at once if there is.

        Raises:
            RuntimeError: somebody listens already.

        """
        if self._on_news is not None:
            raise RuntimeError("a mailbox has two readers")
        self._on_news = on_news
        if (self._text and self._pause is None) or self._end is not None:
            on_news()

    def ignore(self) -> None:
        """Call nobody any more."""
        self._on_news = None

    def get_nowait(self) -> Delta | End | None:
        """Take the next event: the End with all text put so far, else that text; None where there is neither yet.

        Raises:
            RuntimeError: the End was taken already.

        """
        if self._is_end_taken:
            raise RuntimeError("a mailbox was read past its end")
        if self._end is not None:
            self._is_end_taken, self._on_news = True, None
            text, self._text = self._text, ""
            return replace(self._end, text=text) if text else self._end
        if not self._text or self._pause is not None:
            return None
        text, self._text = self._text, ""
        if self._pause_s:
            self._pause = asyncio.get_running_loop().call_later(self._pause_s, self._go_on)
        return Delta(text)

    async def get(self) -> Delta | End:
        """Wait for the next event and take it. Cancelling the wait loses nothing.

        Raises:
            RuntimeError: the End was taken already, or another task is waiting.

        """
        while (event := self.get_nowait()) is None:
            news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.listen(lambda news=news: news.done() or news.set_result(None))  # type: ignore[misc]
            try:
                await news
            finally:
                self._on_news = None
        return event

    def _go_on(self) -> None:
        self._pause = None
        if self._text and self._on_news is not None:
            self._on_news()
