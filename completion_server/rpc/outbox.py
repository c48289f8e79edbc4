"""Writes the answers of all requests of one Session stream, one event at a time."""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import grpc

from completion.v1 import completion_pb2 as pb
from completion_server.core.outcome import AnswerPart, End
from completion_server.pipeline.completion import ActiveCompletion
from completion_server.rpc.messages import convert


@dataclass(slots=True)
class _Answer:
    """The answer under one sequence number: the events of a completion, or a refusal."""

    sequence: int
    completion: ActiveCompletion | None = None
    refusal: End | None = None
    is_ready: bool = False
    """Whether the answer is in the queue of answers with an event to write."""

    def take(self) -> AnswerPart | None:
        """Return the event to write now, None if there is none."""
        return self.refusal if self.completion is None else self.completion.take_nowait()


class Outbox:
    """Writes the events of several answers in the order in which they become ready. Mailboxes merge later text."""

    def __init__(
        self,
        context: "grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse]",
        stall_timeout_s: float,
        max_answers: int,
    ) -> None:
        """Write to a call. A write may block for `stall_timeout_s`; at most `max_answers` are held."""
        self._context = context
        self._stall_timeout_s = stall_timeout_s
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

    def completions(self) -> Iterator[ActiveCompletion]:
        """Return the completions whose End is not written yet."""
        return (answer.completion for answer in self._answers.values() if answer.completion is not None)

    def find(self, sequence: int) -> ActiveCompletion | None:
        """Return the completion with a sequence number, None if there is none or its End is written."""
        answer = self._answers.get(sequence)
        return None if answer is None else answer.completion

    async def reserve(self) -> None:
        """Reserve a place for one answer. Waits while too many answers are unwritten."""
        await self._places.acquire()

    def release(self) -> None:
        """Release a reserved place that gets no answer."""
        self._places.release()

    def add(self, sequence: int, completion: ActiveCompletion) -> None:
        """Write the events of a completion as they become ready. Needs a reserved place."""
        answer = self._answers[sequence] = _Answer(sequence, completion)
        completion.listen(partial(self._notify, answer))

    def refuse(self, sequence: int, end: End) -> None:
        """Write the End of a request that was not accepted. Needs a reserved place."""
        self._notify(_Answer(sequence, refusal=end))

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
            event = answer.take()
            if event is None:
                continue
            await self._write(convert.session_response_of(answer.sequence, event))
            if isinstance(event, End):
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

    async def _write(self, message: pb.SessionResponse) -> None:
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
