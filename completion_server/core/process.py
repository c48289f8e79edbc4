"""What this process is spared: core dumps, pauses of the garbage collector, cancels that a library swallows."""

import asyncio
import gc
import resource

_GC_THRESHOLDS = (10_000, 50, 100)
"""Allocations before a collection of the youngest generation, and collections before one of the next older."""


def freeze_startup_objects() -> None:
    """Keep the garbage collector from scanning all imported and loaded objects, which takes 200 ms.

    Reference counting frees the objects of a request, except a few cycles of libraries, which die young.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def switch_off_core_dumps() -> None:
    """Let the system write no core dump, which has the text that users type, of this process and those that it starts.

    The limit is 1 byte, not 0, where that is allowed. No core file is as short, and Linux takes 1 to mean that no dump
    is piped to a crash handler either, which a limit of 0 does not prevent.

    A process that hides itself whole (PR_SET_DUMPABLE) could not be profiled by its own user, nor could the server see
    which sockets and shared memory a failed engine leaves behind.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = min(hard, 1) if hard != resource.RLIM_INFINITY else 1
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def raise_if_cancelled() -> None:
    """Raise CancelledError if the current task was cancelled. A loop that calls a library repeats this after each call.

    `asyncio.wait_for` of Python 3.11, through which redis-py sends, swallows a cancel that comes when its work is done.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
