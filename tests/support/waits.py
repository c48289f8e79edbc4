"""What a wait that was given up says."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class GaveUpError(AssertionError):
    """A condition did not hold in time."""

    def __init__(self, condition: Callable[[], "bool | Awaitable[bool]"], within_s: float) -> None:
        super().__init__(f"did not hold within {within_s:g} s: {source_of(condition)}")


def source_of(condition: Callable[..., object]) -> str:
    """Return the source of a condition, which for a lambda is the statement that it stands in."""
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)


@asynccontextmanager
async def named_limit(limit_s: float, name: str) -> AsyncIterator[None]:
    """Fail with what was waited for if the block takes longer than a limit."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise AssertionError(f"{name} did not come within {limit_s} s") from None
