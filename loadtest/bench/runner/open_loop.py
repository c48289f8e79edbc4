"""Open loop: requests at a constant rate, whatever the answers take."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def open_loop(rate: float, seconds: float, ask: Callable[[int, float], Coroutine[Any, Any, T]]) -> list[T]:
    """Ask `rate` times a second for some time; return the answers in the order of the requests.

    `ask` gets the request's number and its intended time by `time.perf_counter`, and must raise nothing.
    """
    tasks: list[asyncio.Task[T]] = []
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(max(1, round(seconds * rate))):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(group.create_task(ask(number, due)))
    return [task.result() for task in tasks]
