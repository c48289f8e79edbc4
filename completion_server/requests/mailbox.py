"""A one-slot mailbox between a generation and its reader, which merges unread text.

The slot holds the unread text as one string: a slow reader gets fewer and larger deltas, and an unread mailbox costs no
more memory than the text of its completion. A pause between two deltas merges text for fast readers, too, because a
message costs more than the text in it. The first text and the End are never delayed, and the End carries the last
text. The producer decides how much unread text it accepts. A mailbox belongs to one event loop.
"""

import asyncio
from collections.abc import Callable

from completion_server.core.outcome import Delta, End


class Mailbox:
    """Passes text from one producer to one reader, then exactly one End.

    Each request has its own mailbox. When a newer request reattaches to the generation, the mailbox of the older
    request is closed with an End of its own.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        """Wait at least `pause_s` between two deltas."""
        self._pause_s = pause_s
        self._text = ""
        self._end: End | None = None
        self._is_end_taken = False
        self._pause: asyncio.TimerHandle | None = None
        self._on_event: Callable[[], None] | None = None

    def put_nowait(self, text: str) -> None:
        """Append to the unread text; "" is ignored.

        Raises:
            RuntimeError: the mailbox is closed.

        """
        if self._end is not None:
            raise RuntimeError("text was put into a closed mailbox")
        if text:
            self._text += text
            if self._pause is None and self._on_event is not None:
                self._on_event()

    def close_nowait(self, end: End) -> None:
        """Put the End, which follows the unread text.

        Raises:
            RuntimeError: the mailbox is closed already.

        """
        if self._end is not None:
            raise RuntimeError("a mailbox was closed twice")
        self._end = end
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._on_event is not None:
            self._on_event()

    def discard_pending_nowait(self) -> None:
        """Drop the unread text."""
        self._text = ""

    def listen(self, on_event: Callable[[], None]) -> None:
        """Call `on_event` whenever `get_nowait` may return an event, and at once if it does now.

        Raises:
            RuntimeError: a reader listens already.

        """
        if self._on_event is not None:
            raise RuntimeError("a mailbox has two readers")
        self._on_event = on_event
        if (self._text and self._pause is None) or self._end is not None:
            on_event()

    def ignore(self) -> None:
        """Remove the callback of `listen`."""
        self._on_event = None

    def get_nowait(self) -> Delta | End | None:
        """Take the next event: the End with all unread text, else the unread text, else None.

        Raises:
            RuntimeError: the End was taken already.

        """
        if self._is_end_taken:
            raise RuntimeError("a mailbox was read past its end")
        if self._end is not None:
            self._is_end_taken, self._on_event = True, None
            text, self._text = self._text, ""
            return self._end.with_text(text) if text else self._end
        if not self._text or self._pause is not None:
            return None
        text, self._text = self._text, ""
        if self._pause_s:
            self._pause = asyncio.get_running_loop().call_later(self._pause_s, self._end_pause)
        return Delta(text)

    def _end_pause(self) -> None:
        self._pause = None
        if self._text and self._on_event is not None:
            self._on_event()
