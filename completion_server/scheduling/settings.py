"""How requests share the engine."""

from dataclasses import dataclass
from typing import Literal

from completion_server.core.checks import require_at_least


@dataclass(frozen=True, slots=True)
class SchedulingSettings:
    """The `[scheduling]` section."""

    num_slots: int = 32
    """Requests that may be in the engine; the others wait here, where dropping them is free."""
    max_queued: int = 1024
    """Requests that may wait; a newcomer beyond them is shed."""
    lane: Literal["user", "session"] = "user"
    """Within what only the newest request lives: all of a user's editors, or each of them."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        require_at_least(self, num_slots=1, max_queued=0)
