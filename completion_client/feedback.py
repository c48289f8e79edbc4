"""Feedback of a session: which server answered a request, and calls for reports to servers without an open stream."""

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import Endpoint, Metadata, with_token
from completion_client.errors import ServiceError, UnauthenticatedError, error_of_call
from completion_client.replicas import Replicas

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

_log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_MAX_CALLS = 32
"""Calls that may be open at once; a server that does not answer gets no more."""
_MAX_ANSWERS = 1024


class FeedbackCalls:
    """Reports feedback by `ReportFeedback`, each report once. A report that fails is logged and dropped."""

    def __init__(self, replicas: Replicas, metadata: Metadata) -> None:
        """Call the servers of `replicas` as the caller of `metadata`."""
        self._replicas = replicas
        self._metadata = metadata
        self._answered_by: dict[int, Endpoint] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def answered(self, sequence: int, endpoint: Endpoint) -> None:
        """Remember the server that answered a request, and forget the oldest answers."""
        self._answered_by[sequence] = endpoint
        while len(self._answered_by) > _MAX_ANSWERS:
            del self._answered_by[next(iter(self._answered_by))]

    def answered_by(self, sequence: int) -> Endpoint | None:
        """Return the server that answered a request; None if that is not known any more."""
        return self._answered_by.get(sequence)

    def send_nowait(self, endpoint: Endpoint, feedback: pb.ReportFeedbackRequest) -> None:
        """Send feedback to a server."""
        if self._is_closed or len(self._calls) >= _MAX_CALLS:
            return
        call = asyncio.create_task(self._send(endpoint, feedback))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """Cancel the open calls, and send no other; return the tasks that end with them, for the caller to await."""
        self._is_closed = True
        for call in self._calls:
            call.cancel()
        return list(self._calls)

    async def _send(self, endpoint: Endpoint, feedback: pb.ReportFeedbackRequest) -> None:
        token = self._replicas.token(endpoint)
        try:
            presented = await token.get()
            stub: CompletionServiceAsyncStub = CompletionServiceStub(self._replicas.connection(endpoint).channel)
            metadata = with_token(self._metadata, presented)
            await stub.ReportFeedback(feedback, timeout=_TIMEOUT_S, metadata=metadata)
        except (grpc.aio.AioRpcError, ServiceError) as error:
            failure = error if isinstance(error, ServiceError) else error_of_call(error)
            if failure is not error and isinstance(failure, UnauthenticatedError):
                token.refused(presented, failure)
            _log.info("%s did not take feedback: %s", endpoint.address, failure)
