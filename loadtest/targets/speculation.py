"""Reads and sets the speculation schedule of a running server, over its admin listener."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import grpc
from google.protobuf.message import Message

from completion.v1 import admin_pb2 as pb
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_client import EndpointError, ServiceError, Token
from completion_client.endpoint import with_token
from completion_client.errors import error_of_call
from loadtest.targets import NO_CREDENTIALS, Credentials, TargetError, token_of

if TYPE_CHECKING:
    from completion.v1.admin_pb2_grpc import AdminServiceAsyncStub

T = TypeVar("T")

BY = "loadtest"
"""The operator's name in changes of the schedule."""

_TIMEOUT_S = 10.0
_MS = 1000.0


class Operator:
    """A client of a server's admin listener. Its calls raise TargetError if the server refuses or does not answer."""

    def __init__(self, address: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        """Connect to HOST:PORT with the first call.

        Raises TargetError if the token would leave this machine in plain text.
        """
        self.address = address
        endpoint, self._token = credentials.endpoint(address), token_of(credentials.tokens(), 0) or Token()
        try:
            endpoint.check_token(self._token)
        except EndpointError as error:
            raise TargetError(f"{address}: {error.problem}") from error
        self._channel = endpoint.open_aio_channel((("grpc.enable_http_proxy", 0),))
        self._stub: AdminServiceAsyncStub = AdminServiceStub(self._channel)

    async def status(self) -> pb.GetStatusResponse:
        """Return the server's status."""
        return await self._answer(self._stub.GetStatus, pb.GetStatusRequest())

    async def get(self) -> pb.GetSpeculationResponse:
        """Return the active schedule and its figures."""
        return await self._answer(self._stub.GetSpeculation, pb.GetSpeculationRequest())

    async def put(self, rows: Sequence[tuple[int, int, int]]) -> float:
        """Set a schedule of rows (first, last, K); return how long the call took, in milliseconds."""
        schedule = [
            pb.SpeculationRow(first_batch_size=first, last_batch_size=last, num_speculative_tokens=k)
            for first, last, k in rows
        ]
        return await self._set(pb.SetSpeculationRequest(mode=pb.SPECULATION_MODE_SCHEDULE, schedule=schedule, by=BY))

    async def restore(self, before: pb.GetSpeculationResponse) -> None:
        """Set the schedule again that `get` returned, under the name of the operator who had set it.

        A server in mode AUTO begins anew with its fallback table.
        """
        request = pb.SetSpeculationRequest(mode=before.mode, by=before.by)
        if before.mode == pb.SPECULATION_MODE_FIXED:
            request.num_speculative_tokens = before.schedule[0].num_speculative_tokens
        else:
            request.schedule.extend(before.table)
        await self._set(request)

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[pb.GetSpeculationResponse]:
        """Yield the active schedule, restore it at the end. Raises TargetError also if it can't be changed."""
        before = await self.get()
        if before.fixed_because or not before.max_num_speculative_tokens:
            why = before.fixed_because or "its engine was started with 0 draft tokens"
            raise TargetError(f"{self.address}: the server can't change its speculation schedule while it runs: {why}")
        try:
            yield before
        finally:
            try:
                await self.restore(before)
            except TargetError as error:
                rows = [[row.first_batch_size, row.last_batch_size, row.num_speculative_tokens] for row in before.table]
                raise TargetError(f"{error}; the former schedule could not be restored, it was {rows}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._channel.close()

    async def _set(self, request: pb.SetSpeculationRequest) -> float:
        start = time.perf_counter()
        await self._answer(self._stub.SetSpeculation, request)
        return (time.perf_counter() - start) * _MS

    async def _answer(self, call: Callable[..., Awaitable[T]], request: Message) -> T:
        try:
            metadata = with_token((), await self._token.get())
            return await call(request, timeout=_TIMEOUT_S, metadata=metadata)
        except ServiceError as error:
            raise TargetError(f"{self.address}: {error.message}") from error
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                why = "this is not a server's admin listener (server.admin_listen)"
            else:
                why = f"the admin listener does not answer: {error_of_call(error).message}"
            raise TargetError(f"{self.address}: {why}") from error
