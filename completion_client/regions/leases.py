"""Which connection numbers have users. A number names one connection to each endpoint. Pure.

The lowest number with room is leased first, so that a process has as few connections as its users need at once, however
many of them come and go.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from completion_client.errors import ConnectionLostError


@dataclass(slots=True)
class ConnectionNumbers:
    """Counts the users of each connection number."""

    users_per_connection: int
    """Number of users that share a connection number, unless more ask for that number."""
    _num_users: dict[int, int] = field(default_factory=dict)
    """Users of each number that has any."""

    @property
    def in_use(self) -> list[int]:
        """The numbers with users, in ascending order."""
        return sorted(self._num_users)

    def take(self, number: int | None = None) -> int:
        """Add a user to a number, the lowest with room if none is given; return the number."""
        if number is None:
            number = next(each for each in itertools.count() if self._has_room(each))
        self._num_users[number] = self._num_users.get(number, 0) + 1
        return number

    def give_back(self, number: int) -> bool:
        """Remove a user from a number; return whether it was the last one."""
        self._num_users[number] -= 1
        if self._num_users[number]:
            return False
        del self._num_users[number]
        return True

    def _has_room(self, number: int) -> bool:
        return self._num_users.get(number, 0) < self.users_per_connection


class ConnectionLease:
    """One user's right to use the connections of a number, until it is released."""

    __slots__ = ("_number", "_on_release")

    def __init__(self, number: int, on_release: Callable[[int], object]) -> None:
        """Call `on_release` with the number once."""
        self._number: int | None = number
        self._on_release = on_release

    @property
    def number(self) -> int:
        """The connection number.

        Raises:
            ConnectionLostError: the lease was released.

        """
        if self._number is None:
            raise ConnectionLostError("the client is closed")
        return self._number

    def release(self) -> None:
        """Give the number back; ignored if that was done."""
        if self._number is not None:
            number, self._number = self._number, None
            self._on_release(number)
