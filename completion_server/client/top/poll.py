"""Asks a server what it does, over its admin listener."""

from dataclasses import dataclass

import grpc

from completion.v1 import admin_pb2
from completion.v1.admin_pb2_grpc import AdminServiceStub
from completion_client import Endpoint, ServiceError, UnauthenticatedError
from completion_client.errors import error_of_call
from completion_server.client.operator_commands import health_of
from completion_server.client.options import failure
from completion_server.client.top.metrics import NAMES, Reading, parse

# A server that was down is asked again with each poll, not after gRPC's two minutes.
_CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1_000))
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True, slots=True)
class ServerState:
    """What one server answered to one poll."""

    address: str
    health: str = ""  # "" without an answer
    status: admin_pb2.GetStatusResponse | None = None
    counted: Reading | None = None
    """Since the last poll; None before the second one, and for a server that offers no metrics."""
    problem: str = ""  # a sentence; "" if all calls were answered


class PolledServer:
    """One server: its channel, and its last reading."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Open a channel, which connects at the first poll. Raises EndpointError if it lacks a PEM file or a token."""
        self._endpoint, self._timeout_s = endpoint, timeout_s
        self.channel = endpoint.open_channel(_CHANNEL_OPTIONS)
        self._admin = AdminServiceStub(self.channel)
        self._before: Reading | None = None
        self._unreachable: dict[grpc.StatusCode, str] = {}
        """Why there has been no answer since the last one; it takes seconds to find out."""

    def poll(self) -> ServerState:
        """Ask the server; a server that does not answer is a state, too."""
        address, before, self._before = self._endpoint.address, self._before, None
        try:
            status = self._admin.GetStatus(admin_pb2.GetStatusRequest(), timeout=self._timeout_s)
            health = health_of(self.channel, status, self._timeout_s)
        except (grpc.RpcError, ServiceError) as error:
            return ServerState(address, problem=self._explain(error))
        self._unreachable.clear()
        try:
            page = self._admin.GetMetrics(admin_pb2.GetMetricsRequest(names=NAMES), timeout=self._timeout_s)
            self._before = now = parse(page.text, page.uptime_s)
        except (grpc.RpcError, ServiceError, ValueError) as error:
            why = error_of_call(error).message if isinstance(error, grpc.RpcError) else error
            problem = f"{address}, version {status.version}: its metrics can't be read: {why}"
            return ServerState(address, health, status, problem=problem)
        return ServerState(address, health, status, None if before is None else now.since(before))

    def _explain(self, call: grpc.RpcError | ServiceError) -> str:
        """Return why there is no answer. A refused token is fetched anew for the next poll."""
        error, token = call if isinstance(call, ServiceError) else error_of_call(call), self._endpoint.token
        if token is not None and isinstance(error, UnauthenticatedError):
            token.refused(token.at_hand() or "", error)
        if error.status not in _NO_ANSWER:
            return f"Error: {failure(error, self._endpoint, reached=True)}"
        if error.status not in self._unreachable:
            self._unreachable[error.status] = f"Error: {failure(error, self._endpoint, reached=False)}"
        return self._unreachable[error.status]
