"""The policy's requests on the session with the completion server."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from completion.v1 import completion_pb2 as pb
from completion_client import ConnectionLostError, DeadlineExceededError, PendingCompletion, ServiceError, Session
from completion_client.editing import Report
from completion_lsp.requests import feedback_of, survival_of

_log = logging.getLogger(__name__)

_MOST = 200
"""Requests that feedback can be reported on."""

OnText = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a request ended."""

    reason: str
    """The finish reason, such as "stop", or "error"."""
    retry_after_ms: float | None = None
    """Milliseconds after which to try again."""
    end: pb.End | None = None
    """The server's End, unless the request failed."""
    error: ServiceError | None = None
    """Why it failed, if it did."""


OnEnd = Callable[[int, Ended], None]


class Calls:
    """Sends requests, which have the policy's numbers, and hands their answers on."""

    def __init__(self, session: Callable[[], Session | None], on_text: OnText, on_end: OnEnd) -> None:
        """Use the session that `session` returns, if there is one.

        `on_text` gets a request's number and its text, `on_end` its number and how it ended.
        """
        self._session = session
        self._on_text = on_text
        self._on_end = on_end
        self._pending: dict[int, PendingCompletion] = {}
        self._sequences: OrderedDict[int, int] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def send_nowait(self, number: int, request: pb.CompleteRequest, timeout_s: float) -> bool:
        """Send a request; return whether there is a connection for it."""
        session = self._session()
        if session is None:
            return False
        try:
            pending = session.submit_nowait(request, timeout_s=timeout_s)
        except ConnectionLostError:
            return False
        self._pending[number] = pending
        self._sequences[number] = pending.sequence
        while len(self._sequences) > _MOST:
            self._sequences.popitem(last=False)
        task = asyncio.create_task(self._read(number, pending), name=f"request {number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def cancel_nowait(self, number: int) -> None:
        """Cancel a request; nothing more of it is handed on."""
        if (pending := self._pending.pop(number, None)) is not None:
            pending.cancel_nowait()

    def abandon_nowait(self) -> None:
        """Hand on nothing more of the open requests, whose connection was lost."""
        self._pending.clear()

    def report_nowait(self, report: Report) -> None:
        """Send the policy's feedback on a request, if there is a connection."""
        if sequence := self._sequences.get(report.request):
            self._report_nowait(feedback_of(report, sequence))

    def survival_report(self, number: int) -> Callable[[int, float], None]:
        """Return a function that reports how much of a request's text is there after so many seconds."""
        sequence = self._sequences.get(number)

        def report(after_s: int, share: float) -> None:
            if sequence is not None:
                self._report_nowait(survival_of(sequence, after_s, share))

        return report

    def _report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        if (session := self._session()) is not None:
            session.report_nowait(feedback)

    async def _read(self, number: int, pending: PendingCompletion) -> None:
        try:
            async for text in pending:
                if number in self._pending:
                    self._on_text(number, text)
            completion = await pending.result()
            ended = Ended(completion.finish_reason or "error", completion.retry_after_ms, completion.end)
            _log.info("request %d ended as %s after %.0f ms", number, ended.reason, completion.total_ms)
        except DeadlineExceededError:
            ended = Ended("deadline")
            _log.info("request %d was too late", number)
        except ServiceError as error:
            ended = Ended("error", error.retry_after_ms, error=error)
            _log.info("request %d failed: %s", number, error)
        if self._pending.pop(number, None) is not None:
            self._on_end(number, ended)
