"""gRPC's standard health check, `grpc.health.v1.Health/Check` of the whole server.

Its two messages, one empty and one with one enum, are read and written here: no package is needed for them.
"""

CHECK = "/grpc.health.v1.Health/Check"
WHOLE_SERVER = b""
"""The request: without a service's name it is for the whole server."""
SERVING = "SERVING"

_NAMES = {0: "UNKNOWN", 1: SERVING, 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_STATUS_FIELD = 0x08
"""Field 1, a varint."""


def status_of(response: bytes) -> str:
    """Return the status of an encoded HealthCheckResponse, such as "SERVING"; its default, 0, is not sent."""
    number = response[1] if len(response) > 1 and response[0] == _STATUS_FIELD else 0
    return _NAMES.get(number, str(number))
