"""The client library for editors and other callers of a completion server.

Knows the contract (package `completion`) and nothing of the server. A distribution of its own, `completion-client`,
that needs grpcio, protobuf and googleapis-common-protos alone, so that an editor can install and import it quickly. The
messages of requests are those of `completion.v1.completion_pb2`.

Modules: `client` (single requests), `session` and `session_stream` (one reconnecting stream for an editor's life),
`regions` and `replicas` (several servers, near and far, as one), `channel_pool` and `endpoint` (connections),
`completion` (results), `errors` (failures), `request_fields` (the fields that the library sets), `blocking` (calls
without an event loop).
"""

from completion_client.channel_pool import ChannelKey, ChannelPool
from completion_client.client import CompletionClient
from completion_client.completion import Completion
from completion_client.endpoint import Endpoint, EndpointError
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
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from completion_client.regions.choice import RoutingSettings, parse_endpoints, rendezvous_order
from completion_client.regions.regions import EndpointState, Regions
from completion_client.regions.settings import RegionSettings
from completion_client.replicas.replica_set import ReplicaSet
from completion_client.replicas.stream import ReplicaStream
from completion_client.replicas.view import Move
from completion_client.request_fields import make_traceparent
from completion_client.session import PendingCompletion, Session
from completion_client.session_settings import SessionSettings
from completion_client.session_stream import SessionStream

__version__ = "0.1.0"

__all__ = [
    "ChannelKey",
    "ChannelPool",
    "Completion",
    "CompletionClient",
    "ConnectionLostError",
    "DeadlineExceededError",
    "Endpoint",
    "EndpointError",
    "EndpointState",
    "FailedPreconditionError",
    "FieldViolation",
    "InvalidArgumentError",
    "Limit",
    "Move",
    "PendingCompletion",
    "PermissionDeniedError",
    "RegionSettings",
    "Regions",
    "ReplicaSet",
    "ReplicaStream",
    "ResourceExhaustedError",
    "RoutingSettings",
    "ServiceError",
    "Session",
    "SessionSettings",
    "SessionStream",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "make_traceparent",
    "parse_endpoints",
    "rendezvous_order",
]
