"""Settings of traces."""

import re
from dataclasses import dataclass
from typing import Annotated

from completion_server.core.checks import Between, require_bounds

_ENDPOINT = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The `[traces]` section; needs the extra `traces`. OpenTelemetry reads TLS, headers and limits from OTEL_*."""

    endpoint: str = ""
    """URL of an OpenTelemetry collector that takes OTLP over gRPC, such as http://127.0.0.1:4317, or with the path
    /v1/traces over HTTP with protobuf, such as http://127.0.0.1:4318/v1/traces; https encrypts. "" switches traces
    off."""
    sample_ratio: Annotated[float, Between(0, 1)] = 0.01
    """Share of the requests that are traced, chosen at random when a request is received. A request in a trace of its
    caller is traced if its caller records that. Requests that missed their budget (`shed.budget_ms`) are traced, too;
    they are chosen at their end, so vLLM has no spans of them."""

    @property
    def is_http(self) -> bool:
        """Whether the collector takes OTLP over HTTP, not over gRPC."""
        return self.endpoint.endswith("/v1/traces")

    def __post_init__(self) -> None:
        """Check the bounds and the endpoint."""
        require_bounds(self)
        if self.endpoint and not _ENDPOINT.fullmatch(self.endpoint):
            raise ValueError("endpoint: must be http://HOST:PORT or https://HOST:PORT, without a password")
