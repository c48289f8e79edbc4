"""Feedback in calls of its own, for a session that has no open stream to the server that answered."""

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.endpoint import Endpoint, Metadata, with_token
from completion_client.errors import ServiceError, UnauthenticatedError, error_of_call
from completion_client.replicas.view import Replicas

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub

_log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_MAX_CALLS = 32
"""Calls that may be open at once; a server that does not answer gets no more."""


class FeedbackCalls:
    """Reports feedback by `ReportFeedback`, each report once. A report that fails is logged and dropped."""

    def __init__(self, replicas: Replicas, metadata: Metadata) -> None:
        """Call the servers of `replicas` as the caller of `metadata`."""
        self._replicas = replicas
        self._metadata = metadata
        self._calls: set[asyncio.Task[None]] = set()
        self._is_closed = False

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
            channel = self._replicas.connection(endpoint).channel
            stub: CompletionServiceAsyncStub = CompletionServiceStub(channel)
            metadata = with_token(self._metadata, presented)
            await stub.ReportFeedback(feedback, timeout=_TIMEOUT_S, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            failure = error_of_call(error)
            if isinstance(failure, UnauthenticatedError):
                token.refused(presented, failure)
            self._note(endpoint, failure)
        except ServiceError as error:
            self._note(endpoint, error)

    def _note(self, endpoint: Endpoint, error: ServiceError) -> None:
        _log.info("%s did not take feedback: %s", endpoint.address, error)
