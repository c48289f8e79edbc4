"""Writes to a call, one message at a time; in a session, the answers of many requests."""

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


class Writer:
    """Writes the messages of one call, from one task."""

    def __init__(self, context: Any, stall_timeout_s: float) -> None:
        """Write to a call. A write may block for `stall_timeout_s`."""
        self._context = context
        self._stall_timeout_s = stall_timeout_s
        self._loop = asyncio.get_running_loop()
        self._has_stalled = False

    async def write(self, message: Message) -> None:
        """Write a message. Raises TimeoutError: the write blocked for the stall timeout."""
        # Cheaper than asyncio.timeout, which matters at thousands of messages per second.
        guard = self._loop.call_later(self._stall_timeout_s, self._stall, asyncio.current_task())
        try:
            await self._context.write(message)
        except asyncio.CancelledError:
            if self._has_stalled:
                raise TimeoutError from None
            raise
        finally:
            guard.cancel()

    def _stall(self, writing: "asyncio.Task[Any] | None") -> None:
        assert writing is not None  # a handler of a call is a task
        self._has_stalled = True
        writing.cancel()


class Outbox:
    """Writes the events of a session's answers in the order in which they become ready. Mailboxes merge later text."""

    def __init__(self, writer: Writer, max_answers: int, to_message: ToMessage) -> None:
        """Write to a call; at most `max_answers` are held."""
        self._writer = writer
        self._to_message = to_message
        self.completions: dict[int, Completion] = {}
        """Those whose End is not written yet, by sequence number."""
        self._ready: deque[int | Message] = deque()
        """The sequence numbers of completions with an event to write, each once, and other messages."""
        self._places = asyncio.Semaphore(max_answers)
        self._has_more = asyncio.Event()
        self._is_complete = False

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
        self._has_more.set()

    def complete(self) -> None:
        """Have `run` end when all answers are written: no more requests arrive."""
        self._is_complete = True
        self._has_more.set()

    async def run(self) -> None:
        """Write all answers, until `complete` is called and they are written.

        Raises TimeoutError: a write blocked for the stall timeout.
        """
        while self._ready or not self._is_complete or self.completions:
            if self._ready:
                await self._write_next(self._ready.popleft())
            else:
                self._has_more.clear()
                await self._has_more.wait()

    async def _write_next(self, ready: int | Message) -> None:
        if isinstance(ready, Message):
            await self._writer.write(ready)
            self.release()
            return
        completion = self.completions.get(ready)
        event = None if completion is None else completion.take_nowait()
        if completion is None or event is None:
            return
        await self._writer.write(self._to_message(ready, event))
        if isinstance(event, End):
            self.release()
            del self.completions[ready]
            completion.note_end_written()

    def _notify(self, sequence: int) -> None:
        if sequence not in self._ready:
            self._ready.append(sequence)
            self._has_more.set()
