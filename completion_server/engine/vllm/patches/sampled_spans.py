"""Lets vLLM make no span of a request without trace headers. Such a span would begin a trace of its own."""

from collections.abc import Callable
from typing import Any

from completion_server.engine.vllm.patches.patch import Patch


def _replacement(do_tracing: Callable[..., None]) -> Callable[..., None]:
    def trace_sampled(output: Any, *args: Any) -> None:
        if output.trace_headers:
            do_tracing(output, *args)

    return trace_sampled


PATCH = Patch(
    name="sampled-spans",
    fault="vLLM makes spans of requests that are not traced, which takes time",
    replaces="vllm.v1.engine.output_processor:OutputProcessor.do_tracing",
    digests={"0.32": "0e5c03f78ded33bc", "0.33": "0e5c03f78ded33bc"},
    replacement=_replacement,
)
