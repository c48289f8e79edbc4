"""Ends tasks that were cancelled and go on."""

import asyncio


def raise_if_cancelled() -> None:
    """Raise CancelledError if the current task was cancelled. A loop that calls a library repeats this after each call.

    `asyncio.wait_for` of Python 3.11, through which redis-py sends, swallows a cancel that comes when its work is done.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
