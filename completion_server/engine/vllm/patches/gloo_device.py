"""Makes all Gloo process groups of one member use the same thread and port.

vLLM creates about a dozen Gloo process groups, even if each has one member. Each has a thread that wakes 100 times a
second, and a listening port.
"""

import os
from datetime import timedelta
from functools import cache
from typing import Any

from completion_server.engine.vllm.patches.patch import Patch


def _replacement(gloo: Any) -> Any:
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


PATCH = Patch(
    name="gloo-device",
    fault="an engine's processes have a dozen threads that wake all the time, and as many listening ports",
    replaces="torch.distributed.distributed_c10d:ProcessGroupGloo",
    relies_on={  # the class itself is compiled
        "0.32": "torch.distributed.distributed_c10d:_new_process_group_helper",
        "0.33": "torch.distributed.distributed_c10d:_create_gloo_process_group",
    },
    digests={"0.32": "135657f64a806ced", "0.33": "2d700dd86e405f1e"},
    replacement=_replacement,
)
