"""Writes the answers of a call, one event at a time: that of a single request, or those of a session."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import Message

from completion_server.core.outcome import AnswerPart, End
from completion_server.serving.completion import Completion

ToMessage = Callable[[int, AnswerPart], Message]
"""Returns the message of an event of the request with a sequence number."""


@dataclass(slots=True)
class _Answer:
    """The events of a completion under one sequence number, or one message."""

    sequence: int
    completion: Completion | None = None
    message: Message | None = None
    is_ready: bool = False
    """Whether the answer is in the queue of answers with an event to write."""

    def take(self, to_message: ToMessage) -> tuple[Message | None, bool]:
        """Return the message to write now, None if there is none, and whether it is the last one."""
        if self.completion is None:
            return self.message, True
        event = self.completion.take_nowait()
        message = None if event is None else to_message(self.sequence, event)
        return message, isinstance(event, End)


class Outbox:
    """Writes the events of several answers in the order in which they become ready. Mailboxes merge later text."""

    def __init__(self, context: Any, stall_timeout_s: float, max_answers: int, to_message: ToMessage) -> None:
        """Write to a call. A write may block for `stall_timeout_s`; at most `max_answers` are held."""
        self._context = context
        self._stall_timeout_s = stall_timeout_s
        self._to_message = to_message
        self._answers: dict[int, _Answer] = {}
        self._ready: deque[_Answer] = deque()
        self._places = asyncio.Semaphore(max_answers)
        self._loop = asyncio.get_running_loop()
        self._event: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_complete = False
        self._has_stalled = False

    @property
    def num_live(self) -> int:
        """Number of accepted requests that have not ended. The End of an ended request may still be unwritten."""
        return sum(completion.marks.ended is None for completion in self.completions())

    def completions(self) -> Iterator[Completion]:
        """Return the completions whose End is not written yet."""
        return (answer.completion for answer in self._answers.values() if answer.completion is not None)

    def find(self, sequence: int) -> Completion | None:
        """Return the completion with a sequence number, None if there is none or its End is written."""
        answer = self._answers.get(sequence)
        return None if answer is None else answer.completion

    async def reserve(self) -> None:
        """Reserve a place for one answer. Waits while too many answers are unwritten."""
        await self._places.acquire()

    def release(self) -> None:
        """Release a reserved place that gets no answer."""
        self._places.release()

    def add(self, sequence: int, completion: Completion) -> None:
        """Write the events of a completion as they become ready. Needs a reserved place."""
        answer = self._answers[sequence] = _Answer(sequence, completion)
        completion.listen(partial(self._notify, answer))

    def write_nowait(self, message: Message) -> None:
        """Write the one answer to a message that was not accepted. Needs a reserved place."""
        self._notify(_Answer(0, message=message))

    def complete(self) -> None:
        """Have `run` end when all answers are written: no more requests arrive."""
        self._is_complete = True
        self._wake()

    async def run(self) -> None:
        """Write all answers, until `complete` is called and they are written.

        Raises:
            TimeoutError: a write blocked for the stall timeout.

        """
        self._writing = asyncio.current_task()
        while self._ready or not self._is_complete or self._answers:
            if not self._ready:
                self._event = self._loop.create_future()
                await self._event
                continue
            answer = self._ready.popleft()
            answer.is_ready = False
            message, is_last = answer.take(self._to_message)
            if message is None:
                continue
            await self._write(message)
            if is_last:
                self._close(answer)

    def _notify(self, answer: _Answer) -> None:
        if not answer.is_ready:
            answer.is_ready = True
            self._ready.append(answer)
            self._wake()

    def _wake(self) -> None:
        if self._event is not None and not self._event.done():
            self._event.set_result(None)

    def _close(self, answer: _Answer) -> None:
        self.release()
        if answer.completion is not None:
            del self._answers[answer.sequence]
            answer.completion.note_end_written()

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
