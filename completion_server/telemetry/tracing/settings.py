"""Settings of traces."""

from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import urlsplit

from completion_server.core.checks import Above, Between, require_bounds


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The `[traces]` section. Needs the packages of the extra `traces`, which an installation with vLLM has."""

    endpoint: str = ""
    """URL of an OpenTelemetry collector that takes OTLP, such as http://127.0.0.1:4317; https encrypts. "" switches
    traces off."""
    protocol: Literal["grpc", "http"] = "grpc"
    """OTLP over gRPC, usually on port 4317, or over HTTP with protobuf, usually on port 4318."""
    ca: str = ""
    """PEM file of the certificates that the collector's is verified against. Empty: the system's."""
    headers_file: str = ""
    """File with headers for the collector, such as a token: a line "name: value" for each. Read at start."""
    sample_ratio: Annotated[float, Between(0, 1)] = 0.01
    """Share of the requests that are traced, chosen at random when a request is received. A request in a trace that its
    caller does not record is not."""
    caller_sampled_per_s: Annotated[float, Between(0, 10_000)] = 10.0
    """Requests a second, of all callers together, that are traced because their caller records its trace; beyond that
    `sample_ratio` decides."""
    missed_budget_per_s: Annotated[float, Between(0, 10_000)] = 100.0
    """Further requests a second that are traced because they missed their budget (`shed.budget_ms`). They are chosen at
    their end, so vLLM has no spans of them. 0 switches this off."""
    engine_spans: bool = True
    """Whether traced requests have vLLM's own spans."""
    max_queued_spans: Annotated[int, Between(64, 1_000_000)] = 8192
    """Spans that may wait for the collector; further ones are dropped. A request has about eight."""
    export_interval_s: Annotated[float, Above(0, 60)] = 2.0
    """Time between two exports, unless many spans wait."""
    timeout_s: Annotated[float, Above(0, 60)] = 5.0
    """How long an export may take, with its retries; then its spans are lost. The end of the server waits as long for
    the last one."""

    def __post_init__(self) -> None:
        """Check the bounds and the endpoint."""
        require_bounds(self)
        if self.endpoint:
            _check_endpoint(self.endpoint)
        if self.ca and not self.is_encrypted:
            msg = f"ca: needs an endpoint that begins with https://, got {self.endpoint!r}"
            raise ValueError(msg)

    @property
    def is_encrypted(self) -> bool:
        """Whether the collector is reached over TLS."""
        return self.endpoint.startswith("https://")


def _check_endpoint(endpoint: str) -> None:
    """Check the form of a URL. Raises ValueError that names the key."""
    try:
        url = urlsplit(endpoint)
        is_valid = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0 and not url.query
    except ValueError:
        is_valid = False
    if not is_valid:
        msg = f"endpoint: must be http://HOST:PORT or https://HOST:PORT, got {endpoint!r}"
        raise ValueError(msg)
    if url.username or url.password:
        raise ValueError("endpoint: must not hold a password; put it into headers_file")
