"""Lets only callers with the scope admin call AdminService, also on loopback. Health and reflection need no scope."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc

from completion.v1 import admin_pb2
from completion_server.admission.callers import Callers
from completion_server.core.credential import Scope
from completion_server.core.errors import CompletionError
from completion_server.core.request import Caller
from completion_server.rpc.metadata import identify, metadata_of
from completion_server.rpc.status import abort

_METHODS = f"/{admin_pb2.DESCRIPTOR.services_by_name['AdminService'].full_name}/"

operator: ContextVar[Caller | None] = ContextVar("operator", default=None)
"""The verified caller of the method that runs in this context; None if authentication is off."""


class AdminAccess(grpc.aio.ServerInterceptor):
    """Identifies the caller of each method of AdminService, all of which take one message and return one."""

    def __init__(self, callers: Callers) -> None:
        """Let `callers` with the scope in."""
        self._callers = callers

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the handler of a call, behind the check if it is one of AdminService."""
        handler = await continuation(details)
        if handler is None or not details.method.startswith(_METHODS):
            return handler

        async def serve(request: Any, context: Any) -> Any:
            try:
                operator.set(await identify(self._callers, context, metadata_of(context), Scope.ADMIN))
            except CompletionError as error:
                await abort(context, error)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            serve,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
