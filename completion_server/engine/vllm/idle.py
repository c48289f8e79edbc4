"""Two patches of vLLM 0.32 that keep an idle engine's processes idle.

Spin: a reader of vLLM's shared-memory queue polls it without a pause for a second after each message, so one token
costs a second of a core. A few milliseconds are enough to bridge the gap between two steps. After that the reader
waits for a notification, which wakes it within 0.1 ms. Some notifications get lost (vLLM's socket may drop them). vLLM
looks for a message after five seconds then, which is an outage; the patched reader looks after two milliseconds.

Gloo: vLLM creates about a dozen Gloo process groups, even if each has one member. Each has a thread that wakes 100
times a second and a listening port. With the patch, groups of one member share one thread and one port.

The plugin in `process` applies both in each of vLLM's processes. A version of vLLM or torch with other internals runs
unpatched.
"""

import logging
import os
import time
from datetime import timedelta
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)

MAX_SPIN_S = 0.02
"""How long a reader polls; longer than the gap between two steps of a batch."""

_ACTIVE_S = 1.0
"""A queue read so recently belongs to an engine that works."""
_ACTIVE_WAIT_MS = 2
_IDLE_WAIT_MS = 100
"""How long a reader waits for a notification before it looks for a message, in an engine that works and an idle one."""


@cache
def patch() -> None:
    """Apply both, once in a process."""
    for apply in (shorten_spin, share_gloo_device):
        try:
            apply()
        except (ImportError, AttributeError) as error:
            logger.info("%s does not fit this vLLM: %s", apply.__name__, error)


def shorten_spin() -> None:
    """Make readers of the shared-memory queue wait for a notification after `MAX_SPIN_S`, and not rely on it."""
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    condition: Any = SpinCondition
    make, wait = condition.__init__, condition.wait

    def make_brief(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.busy_loop_s = min(self.busy_loop_s, MAX_SPIN_S)

    def wait_briefly(self: Any, timeout_ms: int | None = None) -> None:
        is_active = time.monotonic() - self.last_read < _ACTIVE_S
        longest = _ACTIVE_WAIT_MS if is_active else _IDLE_WAIT_MS
        wait(self, longest if timeout_ms is None else min(timeout_ms, longest))

    condition.__init__, condition.wait = make_brief, wait_briefly


def share_gloo_device() -> None:
    """Make all Gloo process groups of one member use the same thread and port."""
    from torch.distributed import distributed_c10d

    gloo: Any = distributed_c10d.ProcessGroupGloo
    make_options = gloo._Options

    @cache
    def devices() -> list[Any]:
        """Return the devices that torch would create for a group: one for each named interface."""
        if names := os.environ.get("GLOO_SOCKET_IFNAME"):
            return [gloo.create_device(interface=name) for name in names.split(",")]
        return [gloo.create_default_device()]

    class SharingGloo(gloo):  # type: ignore[misc]
        """A process group that shares its device with the others of one member."""

        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            if size > 1:
                super().__init__(store, rank, size, timeout=timeout)
                return
            options = make_options()
            options._devices, options._timeout = devices(), timeout
            super().__init__(store, rank, size, options)

    vars(distributed_c10d)["ProcessGroupGloo"] = SharingGloo
