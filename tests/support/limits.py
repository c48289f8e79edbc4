"""Time limits of tests: a test that hangs fails after its limit, with the await of each task.

pytest-timeout ends what does not react to that, such as a test that blocks its event loop, with the stacks of threads.
"""

import asyncio
import functools
import inspect
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

QUICK_S = 120.0
SERIAL_S = 300.0
FULL_S = 900.0
"""These are for the test without its fixtures, and for machines that are busy with other things."""
FIXTURES_S = 60.0
SERIAL_FIXTURES_S = 300.0
"""How much longer a test may take with its fixtures. One may start a real engine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its limit: that of its marker `timeout`, or else that of its kind."""
    for item in items:
        is_slow = any(item.get_closest_marker(name) for name in ("full", "large"))
        is_serial = item.get_closest_marker("serial") is not None
        limit_s = FULL_S if is_slow else SERIAL_S if is_serial else QUICK_S
        if marker := item.get_closest_marker("timeout"):
            limit_s = float(marker.args[0])
        fixtures_s = SERIAL_FIXTURES_S if is_slow or is_serial else FIXTURES_S
        item.add_marker(pytest.mark.timeout(limit_s + fixtures_s), append=False)
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = limited(item.obj, limit_s)


def limited(test: Callable[..., Coroutine[Any, Any, None]], limit_s: float) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return a test that is cancelled after a time, and fails then with what all tasks waited for."""

    @functools.wraps(test)
    async def run(*args: Any, **kwargs: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        waits: list[str] = []

        def end() -> None:
            others = sorted(asyncio.all_tasks() - {task}, key=asyncio.Task.get_name)
            waits.extend(map(wait_of, (task, *others)))
            task.cancel()

        timer = asyncio.get_running_loop().call_later(limit_s, end)
        try:
            await test(*args, **kwargs)
        finally:
            timer.cancel()
            if waits:
                pytest.fail(f"no end within {limit_s:g} s; the tasks wait here:\n" + "\n".join(waits), pytrace=False)

    return run


def wait_of(task: "asyncio.Task[Any]") -> str:
    """Return a task's name and its stack, the innermost await last."""
    frames, awaited = traceback.StackSummary(), task.get_coro()
    while awaited is not None:
        kind = next((each for each in ("cr", "gi", "ag") if hasattr(awaited, f"{each}_frame")), None)
        if kind is None:
            break
        if frame := getattr(awaited, f"{kind}_frame"):
            frames.extend(traceback.extract_stack(frame, limit=1))
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return f"{task.get_name()}:\n{''.join(frames.format())}"
