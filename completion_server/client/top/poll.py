"""Asks servers what they do, all at the same time, over their admin listeners."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_client import Endpoint, Metadata, ServiceError, Token, UnauthenticatedError
from completion_client.endpoint import with_token
from completion_client.errors import error_of_call
from completion_client.health import CHECK, SERVING, WHOLE_SERVER, status_of
from completion_client.tls_faults import explain_tls
from completion_server.client.output import explain, health_from
from completion_server.client.top.figures import NAMES, IntervalChange
from completion_server.client.top.readings import Reading, parse

# A server that was down is asked again with each poll, not after gRPC's two minutes.
_CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1_000))
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class ServerState:
    """What one server answered to one poll."""

    address: str
    health: str = ""
    """"" if there was no answer."""
    status: admin_pb2.GetStatusResponse | None = None
    change: IntervalChange | None = None
    """None before the second reading, and for a server that offers no metrics."""
    problem: str = ""
    """A sentence; "" if all calls were answered."""

    @property
    def is_serving(self) -> bool:
        """Whether it accepts requests."""
        return self.health == SERVING


class PolledServer:
    """One server: its channel, and its last reading."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Open a channel, which connects at the first poll. Raises EndpointError if a PEM file can't be read."""
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._channel = endpoint.open_aio_channel(_CHANNEL_OPTIONS)
        self._admin = AdminServiceStub(self._channel)
        self._check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(CHECK)
        self._token = endpoint.token or Token()
        self._metadata: Metadata = ()
        self._before: Reading | None = None
        self._tls_problem: str | None = None
        """None until it was looked for, after a first failure."""

    async def poll(self) -> ServerState:
        """Ask the server; a server that does not answer is a state, too."""
        address = self._endpoint.address
        try:
            status = await self._get_status()
            health = await self._check_health(status)
        except grpc.aio.AioRpcError as error:
            self._before = None
            return ServerState(address, problem=await self._explain(error))
        except ServiceError as error:
            self._before = None
            return ServerState(address, problem=explain(error, address))
        try:
            change = await self._read()
        except (grpc.aio.AioRpcError, ValueError) as error:
            problem = _no_metrics(error, status)
            return ServerState(address, health, status, problem=problem)
        return ServerState(address, health, status, change)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def _get_status(self) -> admin_pb2.GetStatusResponse:
        """Return the status. A token that is refused is fetched anew for the next poll, which waits after that."""
        presented = await self._token.get()
        self._metadata = with_token((), presented)
        request = admin_pb2.GetStatusRequest()
        try:
            answer = await self._admin.GetStatus(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            failure = error_of_call(error)
            if not isinstance(failure, UnauthenticatedError):
                raise
            self._token.refused(presented, failure)
            raise self._token.refusal(failure) from error
        self._token.accepted(presented)
        return answer

    async def _read(self) -> IntervalChange | None:
        request = admin_pb2.GetMetricsRequest(names=NAMES)
        answer = await self._admin.GetMetrics(request, timeout=self._timeout_s, metadata=self._metadata)
        now, before = parse(answer.text, answer.uptime_s), self._before
        self._before = now
        return None if before is None else IntervalChange(now, now.since(before))

    async def _check_health(self, status: admin_pb2.GetStatusResponse) -> str:
        """Return the health; derive it from the status if the listener offers no health checks."""
        try:
            return status_of(await self._check(WHOLE_SERVER, timeout=self._timeout_s))
        except grpc.aio.AioRpcError:
            return health_from(status)

    async def _explain(self, error: grpc.aio.AioRpcError) -> str:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"No answer from {self._endpoint.address} within {self._timeout_s:g} s."
        if error.code() is grpc.StatusCode.UNAVAILABLE and self._tls_problem is None:
            self._tls_problem = await asyncio.to_thread(explain_tls, self._endpoint)
        if self._tls_problem and error.code() in _NO_ANSWER:
            return self._tls_problem
        return explain(error_of_call(error), self._endpoint.address, reached=error.code() not in _NO_ANSWER)


async def poll_all(servers: Sequence[PolledServer]) -> list[ServerState]:
    """Return the state of each server, in order."""
    return await asyncio.gather(*(server.poll() for server in servers))


def _no_metrics(error: grpc.aio.AioRpcError | ValueError, status: admin_pb2.GetStatusResponse) -> str:
    if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return f"Version {status.version} of the server offers no metrics here; only its status is shown."
    return f"Its metrics can't be read: {error.details() if isinstance(error, grpc.aio.AioRpcError) else error}."
