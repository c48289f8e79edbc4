"""Patches of each process of an engine: an idle engine's processes stay idle."""

import os
import time
from collections.abc import Callable
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
