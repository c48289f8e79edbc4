"""What one Session stream has to write: the answers of all its requests, one event at a time."""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import grpc

from completion.v1 import completion_pb2 as pb
from completion_server.completion import Completion
from completion_server.core.outcome import AnswerPart, End
from completion_server.rpc.messages import convert


@dataclass(slots=True)
class _Answer:
    """What is written under one sequence number: the events of a completion, or why there is none."""

    sequence: int
    completion: Completion | None = None
    refusal: End | None = None
    is_ready: bool = False
    """Whether it is in the queue of answers that have something to write."""

    def take(self) -> AnswerPart | None:
        """Return what is to be written now."""
        return self.refusal if self.completion is None else self.completion.take_nowait()


class Outbox:
    """Writes in the order in which answers have something to say; what comes meanwhile is merged in their mailboxes."""

    def __init__(
        self,
        context: "grpc.aio.ServicerContext[pb.SessionRequest, pb.SessionResponse]",
        stall_timeout_s: float,
        max_answers: int,
    ) -> None:
        """Write to a call, whose reader may take nothing for `stall_timeout_s`; hold at most so many answers."""
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
        """Requests that were taken in and have not ended. The end of others may still wait for the reader."""
        return sum(completion.marks.ended is None for completion in self.completions())

    def completions(self) -> Iterator[Completion]:
        """Return what is not answered yet."""
        return (answer.completion for answer in self._answers.values() if answer.completion is not None)

    def find(self, sequence: int) -> Completion | None:
        """Return the completion of a request that is not answered yet."""
        answer = self._answers.get(sequence)
        return None if answer is None else answer.completion

    async def reserve(self) -> None:
        """Take a place for one answer. Waits while the reader leaves too many of them unread."""
        await self._places.acquire()

    def release(self) -> None:
        """Give a place back for which there is no answer."""
        self._places.release()

    def add(self, sequence: int, completion: Completion) -> None:
        """Write the events of a completion as they come. Needs a place."""
        answer = self._answers[sequence] = _Answer(sequence, completion)
        completion.listen(partial(self._notify, answer))

    def refuse(self, sequence: int, end: End) -> None:
        """Write why a request is not taken in. Needs a place."""
        self._notify(_Answer(sequence, refusal=end))

    def complete(self) -> None:
        """No more requests come: `run` ends when everything is written."""
        self._is_complete = True
        self._wake()

    async def run(self) -> None:
        """Write everything.

        Raises:
            TimeoutError: the reader stalls.

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
        # Cheaper than asyncio.timeout, at some thousand messages a second.
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
