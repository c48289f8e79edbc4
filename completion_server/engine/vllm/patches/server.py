"""Patches of the server's process: counts of each step, and spans."""

from collections.abc import Callable, Sequence
from typing import Any

from completion_server.engine.vllm.patches.patch import patching


@patching(
    "vllm.v1.engine.output_processor:OutputProcessor.process_outputs",
    fault="no token and no step is counted, so the number of slots and K are chosen blindly",
    digests={"0.32": "9e116796002e75f2", "0.33": "06811284749d457d"},
    is_required=True,
)
def counted_outputs(
    process_outputs: Callable[..., Any], count: Callable[[Sequence[Any], float], None]
) -> Callable[..., Any]:
    """Show each step's outputs to the server, before vLLM drops those of aborted generations and merges the rest."""

    def count_and_process(outputs: Sequence[Any], at: float, *args: Any, **kwargs: Any) -> Any:
        count(outputs, at)
        return process_outputs(outputs, at, *args, **kwargs)

    return count_and_process


@patching(
    "vllm.v1.engine.async_llm:init_tracer",
    fault="each start of the engine leaves a thread and an unencrypted channel to the collector in the server",
    relies_on={"0.32": "vllm.tracing:init_tracer", "0.33": "vllm.tracing:init_tracer"},
    digests={"0.32": "10c91d79fbebb61f", "0.33": "10c91d79fbebb61f"},
)
def span_exporter(_init_tracer: object) -> Callable[[str, str], None]:
    """Leave the export of vLLM's spans to the server.

    vLLM makes its spans with the server's provider of OpenTelemetry. The exporter that it makes besides would have no
    span to export. It has a thread and a channel, which each restart of the engine leaves behind.
    """

    def make_no_tracer(_name: str, _endpoint: str) -> None:
        """Stand in for vLLM's function, whose result `AsyncLLM` does not use."""

    return make_no_tracer


@patching(
    "vllm.v1.engine.output_processor:OutputProcessor.do_tracing",
    fault="vLLM makes spans of requests that are not traced, which takes time",
    digests={"0.32": "0e5c03f78ded33bc", "0.33": "0e5c03f78ded33bc"},
)
def sampled_spans(do_tracing: Callable[..., None]) -> Callable[..., None]:
    """Let vLLM make no span of a request without trace headers. Such a span would begin a trace of its own."""

    def trace_sampled(output: Any, *args: Any) -> None:
        if output.trace_headers:
            do_tracing(output, *args)

    return trace_sampled
