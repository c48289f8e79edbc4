"""The client library for editors and other callers of a completion server.

Knows the contract (package `completion`) and nothing of the server. A distribution of its own, `completion-client`,
that needs grpcio, protobuf and googleapis-common-protos alone, so that an editor can install and import it quickly. The
messages of requests are those of `completion.v1.completion_pb2`.

Modules: `client` (the entry point), `session` (an editor's requests), `attempts` (one request at one server after
another), `stream` (a session's requests at the best server), `replicas` (one user's view of the servers), `regions`
(what all users know of them), `endpoint` (a server), `completion` (results), `errors` (failures), `tokens` (what a
caller presents), `request_fields` (the fields that the library sets), `blocking` (calls without an event loop).
"""

from completion_client.attempts import Attempts
from completion_client.client import CompletionClient
from completion_client.completion import Completion
from completion_client.endpoint import ChannelOptions, Endpoint, EndpointError, Metadata, parse_endpoints
from completion_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    FailedPreconditionError,
    FieldViolation,
    InvalidArgumentError,
    Limit,
    PermissionDeniedError,
    ResourceExhaustedError,
    ServiceError,
    TokenError,
    TokenRefusedError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from completion_client.region_settings import RegionSettings
from completion_client.regions import EndpointState, Regions
from completion_client.replicas import EndpointOrder, Move, OnMove, rendezvous_order
from completion_client.request_fields import make_traceparent
from completion_client.session import PendingCompletion, Session
from completion_client.session_settings import RequestListener, SessionSettings, StreamListener
from completion_client.stream import ReplicaStream, Route
from completion_client.tokens import Token
from completion_client.watcher import Health

__version__ = "0.1.0"

__all__ = [
    "Attempts",
    "ChannelOptions",
    "Completion",
    "CompletionClient",
    "ConnectionLostError",
    "DeadlineExceededError",
    "Endpoint",
    "EndpointError",
    "EndpointOrder",
    "EndpointState",
    "FailedPreconditionError",
    "FieldViolation",
    "Health",
    "InvalidArgumentError",
    "Limit",
    "Metadata",
    "Move",
    "OnMove",
    "PendingCompletion",
    "PermissionDeniedError",
    "RegionSettings",
    "Regions",
    "ReplicaStream",
    "RequestListener",
    "ResourceExhaustedError",
    "Route",
    "ServiceError",
    "Session",
    "SessionSettings",
    "StreamListener",
    "Token",
    "TokenError",
    "TokenRefusedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "make_traceparent",
    "parse_endpoints",
    "rendezvous_order",
]
