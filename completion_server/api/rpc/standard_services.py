"""Serves health and reflection as their libraries do, but with limits on the size and the receive time of a message.

The libraries' handlers run after a request was received whole, so a request that never ends would be held as long as
its connection lives.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from completion_server.api.rpc.status import abort
from completion_server.core.errors import DeadlineError, InvalidRequestError

_REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
"""Its messages are those of v1alpha. It is not among the listed services, because grpcio has no descriptor of it."""
_MAX_BYTES = 4096
"""Limit of a request, which names a service, a file or a symbol."""


def add_standard_services(
    server: grpc.aio.Server,
    health: health_aio.HealthServicer,
    receive_timeout_s: float,
    reflected: str | None,
) -> None:
    """Serve health, and reflection of the service named `reflected` unless that is None."""
    registrar: Any = _Registrar(server, receive_timeout_s)
    health_pb2_grpc.add_HealthServicer_to_server(health, registrar)
    if reflected is not None:
        names = (reflected, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        register: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
        servicer = reflection.aio.ReflectionServicer(names)
        register(servicer, registrar)
        register(servicer, _Registrar(server, receive_timeout_s, _REFLECTION_V1))


class _Registrar:
    """Replaces a server while a library registers its methods, and registers each as a stream with limits."""

    def __init__(self, server: grpc.aio.Server, receive_timeout_s: float, name: str = "") -> None:
        """Register services under their own names, or a service under another `name`."""
        self._server = server
        self._name = name
        self._receive_timeout_s = receive_timeout_s

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        """Do nothing: the libraries register the same methods by name, too."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Register the methods of a service."""
        bounded = {name: self._bounded(handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(self._name or service, bounded),))

    def _bounded(self, handler: Any) -> Any:
        async def serve(_messages: Any, context: Any) -> None:
            requests = self._requests(context, handler.request_deserializer)
            try:
                if handler.request_streaming:
                    async for response in handler.stream_stream(requests, context):
                        await context.write(response)
                    return
                request = await anext(requests, None)
                if request is None:
                    raise InvalidRequestError("message", "must be sent, but the call ended without one")
            except (DeadlineError, InvalidRequestError) as error:
                await abort(context, error)
            if handler.response_streaming:
                await handler.unary_stream(request, context)
            else:
                await context.write(await handler.unary_unary(request, context))

        return grpc.stream_stream_rpc_method_handler(serve, response_serializer=handler.response_serializer)

    async def _requests(self, context: Any, parse: Any) -> AsyncIterator[Any]:
        while True:
            try:
                async with asyncio.timeout(self._receive_timeout_s):
                    data = await context.read()
            except TimeoutError:
                msg = f"no request was received within {self._receive_timeout_s:g} s"
                raise DeadlineError(msg) from None
            if data is grpc.aio.EOF:
                return
            if len(data) > _MAX_BYTES:
                raise InvalidRequestError("message", f"must be at most {_MAX_BYTES} bytes, got {len(data)}")
            try:
                request = parse(data)
            except DecodeError:
                raise InvalidRequestError("message", f"{len(data)} bytes that are no protobuf message") from None
            yield request
