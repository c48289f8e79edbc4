"""Accounts of the engine's tokens, of tenants and of their users, for weighted fair sharing. Pure.

This is start-time fair queueing in two levels. An account's position is the number of tokens computed for its owner,
and of those that its running generations are expected to cost, divided by its weight. Of the accounts that want tokens,
because a request waits or because the engine has not computed its prompt yet, the one with the least position is owed
the most. All that are at most `TOLERANCE` ahead of it are within their share: among them the order of the queue
decides, as if there was one owner. The others wait until the rest have caught up or want no more.

An owner that was idle begins where the accounts that wanted tokens meanwhile have come to. It keeps `TOLERANCE` of the
credit that it had, at most: most users type and pause, and would else get less than one who always asks.
"""

import itertools
import operator
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

TOLERANCE = 1024.0
"""Tokens by which an account of weight 1 may be ahead of another one before that goes first. With less, accounts that
ask for the same would differ by chance, the order of deadlines would be lost, and a user who opens a long document
would wait for long. With more, a tenant of twice the weight gets its share later."""
SLOT_TOKENS = 768.0
"""A running generation counts as so many tokens at least, so that while others wait, an account has one slot more than
they at most. More than half of `TOLERANCE`, and less than it: a user's prefetch does not delay the user's next key."""


@dataclass(slots=True, eq=False)
class Account:
    """The tokens of an owner, a tenant or a user of a tenant, divided by the weight that it had at the time."""

    position: float
    """Tokens computed, and those that the running generations are expected to cost."""
    running: float = 0.0
    """Those that the running generations are expected to cost."""


AccountT = TypeVar("AccountT", bound=Account)
_position = operator.attrgetter("position")


class Level(Generic[AccountT]):
    """The accounts that share with each other."""

    def __init__(self) -> None:
        """Begin with none."""
        self.now = 0.0
        """Virtual time in tokens: what the account that is owed the most had been served at the last turn."""
        self.waiting: dict[AccountT, None] = {}
        """Those with a request that waits."""
        self._computing: Counter[AccountT] = Counter()
        """Those whose prompts the engine has not computed yet, and how many."""

    def enter(self, account: AccountT) -> None:
        """Have an account wait. It loses credit beyond the tolerance."""
        self.waiting[account] = None
        account.position = max(account.position, self.now - TOLERANCE)

    def begin(self, account: AccountT) -> None:
        """Note that the engine begins with a prompt of an account."""
        self._computing[account] += 1

    def computed(self, account: AccountT) -> None:
        """Note that it has computed one, or gave it up."""
        self._computing[account] -= 1
        if not self._computing[account]:
            del self._computing[account]

    def limit(self) -> float:
        """Return the position up to which accounts are within their share, and move the time on."""
        least = min(itertools.chain(self.waiting, self._computing), key=_position)
        self.now = max(self.now, least.position - least.running)
        return least.position + TOLERANCE

    def furthest_over(self, own: AccountT | None) -> AccountT | None:
        """Return the account that is furthest over its share, of those that wait and a newcomer's own, if one is."""
        positions = {each: each.position for each in self.waiting}
        if own is not None:
            positions.setdefault(own, max(own.position, self.now))
        most = max(positions, key=positions.__getitem__, default=None)
        return most if most is not None and positions[most] > min(positions.values()) + TOLERANCE else None


@dataclass(slots=True, eq=False, kw_only=True)
class User(Account):
    """The account of a user."""

    tenant: "Tenant"
    num_waiting: int = 0
    """Requests that wait."""


@dataclass(slots=True, eq=False)
class Tenant(Account):
    """The account of a tenant, and those of its users."""

    weight: float = 1.0
    users: Level[User] = field(default_factory=Level)
    accounts: dict[str, User] = field(default_factory=dict)
    """Those that wait, that run, and some that are idle."""


Charge = tuple[User, float, float]
"""The tokens that a running generation is expected to cost its user, and its tenant by weight."""
