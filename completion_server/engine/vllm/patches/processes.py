"""Patches of the engine's processes, which stay idle with it, and of the server's: counts of each step, and spans."""

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from completion_server.engine.vllm.patches.patch import patching

MAX_POLL_S = 0.02
"""How long a reader polls; longer than the gap between two steps of a batch."""

_ACTIVE_S = 1.0
"""A queue read so recently belongs to an engine that works."""
_ACTIVE_WAIT_MS = 2
_IDLE_WAIT_MS = 100
"""How long a reader waits for a notification before it looks for a message, in an engine that works and an idle one."""


@patching(
    "vllm.distributed.device_communicators.shm_broadcast:SpinCondition.wait",
    fault="each token costs a second of a processor core, and a lost notification stops an engine for five seconds",
    digests={"0.32": "3c5dd220ba84735e", "0.33": "3c5dd220ba84735e"},
)
def idle_polling(wait: Callable[..., None]) -> Callable[..., None]:
    """Let a reader of vLLM's shared-memory queue poll only for a moment, and look for a message soon.

    vLLM's reader polls without a pause for a second after each message. A few milliseconds are enough to bridge the gap
    between two steps. After that the reader waits for a notification, which wakes it within 0.1 ms. Some notifications
    get lost (vLLM's socket may drop them). vLLM looks for a message after five seconds then, which is an outage; the
    patched reader looks after two milliseconds.
    """

    def wait_briefly(self: Any, timeout_ms: int | None = None) -> None:
        self.busy_loop_s = min(self.busy_loop_s, MAX_POLL_S)
        is_active = time.monotonic() - self.last_read < _ACTIVE_S
        longest = _ACTIVE_WAIT_MS if is_active else _IDLE_WAIT_MS
        wait(self, longest if timeout_ms is None else min(timeout_ms, longest))

    return wait_briefly


@patching(
    "torch.distributed.distributed_c10d:ProcessGroupGloo",
    fault="an engine's processes have a dozen threads that wake all the time, and as many listening ports",
    relies_on={  # the class itself is compiled
        "0.32": "torch.distributed.distributed_c10d:_new_process_group_helper",
        "0.33": "torch.distributed.distributed_c10d:_create_gloo_process_group",
    },
    digests={"0.32": "135657f64a806ced", "0.33": "2d700dd86e405f1e"},
)
def gloo_device(gloo: Any) -> Any:
    """Make all Gloo process groups of one member use the same thread and port.

    vLLM creates about a dozen Gloo process groups, even if each has one member. Each has a thread that wakes 100 times
    a second, and a listening port.
    """
    make_options = gloo._Options

    @cache
    def devices() -> list[Any]:
        """Return the devices that torch would create for a group: one for each named interface."""
        if names := os.environ.get("GLOO_SOCKET_IFNAME"):
            return [gloo.create_device(interface=name) for name in names.split(",")]
        return [gloo.create_default_device()]

    class SharingGloo(gloo):  # type: ignore[misc]
        """A process group that shares its device with the others of one member."""

        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, **others: Any) -> None:
            # `others` depend on torch's version. What is set among them has no place beside `options`.
            if size > 1 or any(others.values()):
                super().__init__(store, rank, size, timeout=timeout, **others)
                return
            options = make_options()
            options._devices, options._timeout = devices(), timeout
            super().__init__(store, rank, size, options)

    return SharingGloo


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
