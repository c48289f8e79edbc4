"""Makes vLLM's own spans those of sampled requests alone, and exported by the server.

vLLM makes a span of each request in the server's process, with OpenTelemetry's provider of that process, which is the
server's. Its other processes would make spans of their start with exporters of their own, without encryption. The
exporter that it makes in the server's process would have no span to export.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.engine import async_llm

_DISABLED = "OTEL_SDK_DISABLED"


@contextmanager
def only_in_server() -> Iterator[None]:
    """Let an engine that is made inside the `with` block make no exporter, here or in its own processes.

    The exporter in the server's process has a thread and a channel, which each restart of the engine leaves behind.
    """
    given, names = os.environ.get(_DISABLED), vars(async_llm)
    init_tracer = names["init_tracer"]
    os.environ[_DISABLED] = "true"
    names["init_tracer"] = _make_no_tracer
    try:
        yield
    finally:
        names["init_tracer"] = init_tracer
        if given is None:
            del os.environ[_DISABLED]
        else:
            os.environ[_DISABLED] = given


def _make_no_tracer(_name: str, _endpoint: str) -> None:
    """Stand in for vLLM's function, whose result `AsyncLLM` does not use."""


def only_of_sampled(processor: Any) -> None:
    """Let vLLM's output processor make no span of a request without trace headers.

    Such a span would begin a trace of its own, and making it takes time.
    """
    make_span = processor.do_tracing

    def do_tracing(output: Any, *args: Any) -> None:
        if output.trace_headers:
            make_span(output, *args)

    processor.do_tracing = do_tracing
