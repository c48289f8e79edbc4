"""Leaves the export of vLLM's spans to the server.

vLLM makes its spans with the server's provider of OpenTelemetry. The exporter that it makes besides would have no span
to export. It has a thread and a channel, which each restart of the engine leaves behind.
"""

from collections.abc import Callable

from completion_server.engine.vllm.patches.patch import Patch


def _replacement(_init_tracer: object) -> Callable[[str, str], None]:
    def make_no_tracer(_name: str, _endpoint: str) -> None:
        """Stand in for vLLM's function, whose result `AsyncLLM` does not use."""

    return make_no_tracer


PATCH = Patch(
    name="span-exporter",
    fault="each start of the engine leaves a thread and an unencrypted channel to the collector in the server",
    replaces="vllm.v1.engine.async_llm:init_tracer",
    relies_on={"0.32": "vllm.tracing:init_tracer", "0.33": "vllm.tracing:init_tracer"},
    digests={"0.32": "10c91d79fbebb61f", "0.33": "10c91d79fbebb61f"},
    replacement=_replacement,
)
