"""Exceptions of the client library, by the status of a call."""

import grpc
import pytest

from completion_client.errors import ConnectionLostError, ServiceError, error_of_call


def failed_call(status: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("status", "details", "is_lost"),
    [
        (grpc.StatusCode.INTERNAL, "Internal error from Core", True),
        (grpc.StatusCode.INTERNAL, "the server failed", False),
        (grpc.StatusCode.UNAVAILABLE, "the server drains", False),
    ],
)
def test_a_write_into_a_broken_connection_is_a_lost_connection(
    status: grpc.StatusCode, details: str, is_lost: bool
) -> None:
    error = error_of_call(failed_call(status, details))
    assert isinstance(error, ServiceError)
    assert isinstance(error, ConnectionLostError) == is_lost
