"""Writes the answers of a call, one event at a time: that of a single request, or those of a session."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.message import Message

from completion_server.core.outcome import AnswerPart, End
from completion_server.requests.completion import Completion

ToMessage = Callable[[int, AnswerPart], Message]
"""Returns the message of an event of the request with a sequence number."""


class Outbox:
    """Writes the events of several answers in the order in which they become ready. Mailboxes merge later text."""

    def __init__(self, context: Any, stall_timeout_s: float, max_answers: int, to_message: ToMessage) -> None:
        """Write to a call. A write may block for `stall_timeout_s`; at most `max_answers` are held."""
        self._context = context
        self._stall_timeout_s = stall_timeout_s
        self._to_message = to_message
        self.completions: dict[int, Completion] = {}
        """Those whose End is not written yet, by sequence number."""
        self._ready: deque[int | Message] = deque()
        """The sequence numbers of completions with an event to write, each once, and other messages."""
        self._places = asyncio.Semaphore(max_answers)
        self._loop = asyncio.get_running_loop()
        self._event: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_complete = False
        self._has_stalled = False

    @property
    def num_live(self) -> int:
        """Number of accepted requests that have not ended. The End of an ended request may still be unwritten."""
        return sum(completion.marks.ended is None for completion in self.completions.values())

    async def reserve(self) -> None:
        """Reserve a place for one answer. Waits while too many answers are unwritten."""
        await self._places.acquire()

    def release(self) -> None:
        """Release a reserved place that gets no answer."""
        self._places.release()

    def add(self, sequence: int, completion: Completion) -> None:
        """Write the events of a completion as they become ready. Needs a reserved place."""
        self.completions[sequence] = completion
        completion.listen(partial(self._notify, sequence))

    def write_nowait(self, message: Message) -> None:
        """Write the one answer to a message that was not accepted. Needs a reserved place."""
        self._ready.append(message)
        self._wake()

    def complete(self) -> None:
        """Have `run` end when all answers are written: no more requests arrive."""
        self._is_complete = True
        self._wake()

    async def run(self) -> None:
        """Write all answers, until `complete` is called and they are written.

        Raises TimeoutError: a write blocked for the stall timeout.
        """
        self._writing = asyncio.current_task()
        while self._ready or not self._is_complete or self.completions:
            if self._ready:
                await self._write_next(self._ready.popleft())
            else:
                self._event = self._loop.create_future()
                await self._event

    async def _write_next(self, ready: int | Message) -> None:
        if isinstance(ready, Message):
            await self._write(ready)
            self.release()
            return
        completion = self.completions.get(ready)
        event = None if completion is None else completion.take_nowait()
        if completion is None or event is None:
            return
        await self._write(self._to_message(ready, event))
        if isinstance(event, End):
            self.release()
            del self.completions[ready]
            completion.note_end_written()

    def _notify(self, sequence: int) -> None:
        if sequence not in self._ready:
            self._ready.append(sequence)
            self._wake()

    def _wake(self) -> None:
        if self._event is not None and not self._event.done():
            self._event.set_result(None)

    async def _write(self, message: Message) -> None:
        # Cheaper than asyncio.timeout, which matters at thousands of messages per second.
        guard = self._loop.call_later(self._stall_timeout_s, self._stall)
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if self._has_stalled:
                raise TimeoutError from None
            raise
        finally:
            guard.cancel()

    def _stall(self) -> None:
        assert self._writing is not None
        self._has_stalled = True
        self._writing.cancel()
