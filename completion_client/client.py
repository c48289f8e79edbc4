"""The entry point of the library: one server, its connections, single requests and sessions."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client.channel_pool import CONNECT_TIMEOUT_S, ChannelKey, ChannelPool, SharedChannel
from completion_client.completion import Completion, CompletionBuilder
from completion_client.endpoint import Endpoint, Metadata, caller_metadata
from completion_client.errors import error_of_call
from completion_client.request_fields import Numbering, make_session_id, trace_metadata
from completion_client.session import Session
from completion_client.session_settings import SessionSettings, StreamListener
from completion_client.session_stream import SessionStream

if TYPE_CHECKING:
    from completion.v1.completion_pb2_grpc import CompletionServiceAsyncStub


class CompletionClient:
    """Asks one server for completions. Use it in one event loop, as an asynchronous context manager.

    All requests and sessions share one connection. It is opened when it is first needed.
    """

    def __init__(
        self,
        endpoint: Endpoint | str,
        *,
        user: str | None = None,
        tenant: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Ask the server at `endpoint`, an Endpoint or HOST:PORT without TLS, for `user` of `tenant`.

        The server keeps one live request per user, and tells users apart by tenant and name.

        Raises:
            EndpointError: a name has characters that can't be sent.

        """
        self._endpoint = Endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self._metadata = caller_metadata(user, tenant)
        self._pool = ChannelPool(connect_timeout_s)
        self._channels = SharedChannel(self._pool, ChannelKey(self._endpoint))
        self._numbering = Numbering()

    @property
    def endpoint(self) -> Endpoint:
        """The server."""
        return self._endpoint

    async def __aenter__(self) -> Self:
        """Return the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; open requests fail."""
        self._pool.close()

    async def connect(self) -> None:
        """Connect now, so that the first request does not wait for it.

        Raises:
            ConnectionLostError: there is no connection within the timeout.
            EndpointError: a PEM file of the endpoint can't be read.

        """
        await self._channels.ready()

    async def complete(
        self,
        request: pb.CompleteRequest,
        *,
        timeout_s: float | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> Completion:
        """Send one request and return its whole answer; `on_text` gets each piece of text as it arrives.

        Fills in `session_id` and `sequence` if they are not set. A request that ends as superseded, shed or cancelled
        has not failed: see `Completion.finish_reason`. Cancelling this coroutine cancels the request.

        Raises:
            ServiceError: the call or the request failed, or the timeout passed.
            EndpointError: a PEM file of the endpoint can't be read.

        """
        channel, message = self._channels.channel(), self._numbering.numbered(request)
        completion = await collect(
            stream_events(channel, message, timeout_s=timeout_s, metadata=self._metadata), time.monotonic(), on_text
        )
        completion.raise_for_error()
        return completion

    @asynccontextmanager
    async def session(
        self,
        session_id: str | None = None,
        *,
        settings: SessionSettings | None = None,
        listener: StreamListener | None = None,
    ) -> AsyncIterator[Session]:
        """Open a session for an editor's life; leaving the context ends it and fails its open requests.

        `listener` gets the losses of the stream, for a display of the connection's state.

        Raises:
            ConnectionLostError: there is no connection within the timeout.
            EndpointError: a PEM file of the endpoint can't be read.

        """
        await self._channels.ready()
        stream = SessionStream(self._channels, metadata=self._metadata, settings=settings, listener=listener)
        stream.start_nowait()
        session = Session(stream, session_id or make_session_id())
        try:
            yield session
        finally:
            await session.aclose()


async def stream_events(
    channel: grpc.aio.Channel, request: pb.CompleteRequest, *, timeout_s: float | None = None, metadata: Metadata = ()
) -> AsyncGenerator[pb.CompleteResponse, None]:
    """Send a request and yield the events of its answer. Cancelling the consumer cancels the call.

    Raises:
        ServiceError: the call failed, or the timeout passed.

    """
    stub: CompletionServiceAsyncStub = CompletionServiceStub(channel)
    call = stub.Complete(request, timeout=timeout_s, metadata=(*metadata, *trace_metadata(request)))
    try:
        async for event in call:
            yield event
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error) from error
    finally:
        call.cancel()


async def collect(
    events: AsyncGenerator[pb.CompleteResponse, None], sent_s: float, on_text: Callable[[str], object] | None
) -> Completion:
    """Return the whole answer to a request that was sent at `sent_s`; `on_text` gets each piece of text."""
    builder = CompletionBuilder(sent_s)
    async with aclosing(events):
        async for event in events:
            text = builder.add(event, time.monotonic())
            if text and on_text is not None:
                on_text(text)
    return builder.build(time.monotonic())
