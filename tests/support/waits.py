"""What a wait that was given up says."""

import inspect
from collections.abc import Awaitable, Callable


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
