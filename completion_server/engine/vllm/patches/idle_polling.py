"""Keeps an idle engine's processes idle.

A reader of vLLM's shared-memory queue polls it without a pause for a second after each message. A few milliseconds are
enough to bridge the gap between two steps. After that the reader waits for a notification, which wakes it within
0.1 ms. Some notifications get lost (vLLM's socket may drop them). vLLM looks for a message after five seconds then,
which is an outage; the patched reader looks after two milliseconds.
"""

import time
from collections.abc import Callable
from typing import Any

from completion_server.engine.vllm.patches.patch import Patch

MAX_POLL_S = 0.02
"""How long a reader polls; longer than the gap between two steps of a batch."""

_ACTIVE_S = 1.0
"""A queue read so recently belongs to an engine that works."""
_ACTIVE_WAIT_MS = 2
_IDLE_WAIT_MS = 100
"""How long a reader waits for a notification before it looks for a message, in an engine that works and an idle one."""


def _replacement(wait: Callable[..., None]) -> Callable[..., None]:
    def wait_briefly(self: Any, timeout_ms: int | None = None) -> None:
        self.busy_loop_s = min(self.busy_loop_s, MAX_POLL_S)
        is_active = time.monotonic() - self.last_read < _ACTIVE_S
        longest = _ACTIVE_WAIT_MS if is_active else _IDLE_WAIT_MS
        wait(self, longest if timeout_ms is None else min(timeout_ms, longest))

    return wait_briefly


PATCH = Patch(
    name="idle-polling",
    fault="each token costs a second of a processor core, and a lost notification stops an engine for five seconds",
    replaces="vllm.distributed.device_communicators.shm_broadcast:SpinCondition.wait",
    digests={"0.32": "3c5dd220ba84735e", "0.33": "3c5dd220ba84735e"},
    replacement=_replacement,
)
