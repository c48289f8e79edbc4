"""Makes vLLM's own spans those of sampled requests alone, and exported by the server.

vLLM makes a span of each request in the server's process, with OpenTelemetry's provider of that process, which is the
server's. Its other processes would make spans of their start with exporters of their own, without encryption.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_DISABLED = "OTEL_SDK_DISABLED"


@contextmanager
def only_in_server() -> Iterator[None]:
    """Let the processes of an engine that is made inside the `with` block export no spans."""
    given = os.environ.get(_DISABLED)
    os.environ[_DISABLED] = "true"
    try:
        yield
    finally:
        if given is None:
            del os.environ[_DISABLED]
        else:
            os.environ[_DISABLED] = given


def only_of_sampled(processor: Any) -> None:
    """Let vLLM's output processor make no span of a request without trace headers.

    Such a span would begin a trace of its own, and making it takes time.
    """
    make_span = processor.do_tracing

    def do_tracing(output: Any, *args: Any) -> None:
        if output.trace_headers:
            make_span(output, *args)

    processor.do_tracing = do_tracing
