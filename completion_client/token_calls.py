"""Adds a caller's token to the blocking calls of a channel."""

from collections.abc import Callable
from typing import Any

import grpc

from completion_client.tokens import Token

AUTHORIZATION = "authorization"


def bearer(token: str) -> tuple[str, str]:
    """Return the metadata of a token."""
    return AUTHORIZATION, f"Bearer {token}"


class TokenCalls(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the token of the moment to each call."""

    def __init__(self, token: Token) -> None:
        """Present this token."""
        self._token = token

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:  # noqa: ANN401
        """See grpc."""
        return continuation(self._with_token(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:  # noqa: ANN401
        """See grpc."""
        return continuation(self._with_token(details), request)

    def _with_token(self, details: Any) -> Any:  # noqa: ANN401 - grpc's own named tuple
        return details._replace(metadata=(*(details.metadata or ()), bearer(self._token.get_blocking())))
