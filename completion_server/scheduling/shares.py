"""Accounts of the engine's tokens, of tenants and of their users, for weighted fair sharing. Pure.

This is start-time fair queueing in two levels. An account's position is the number of tokens computed for its owner,
and of those that its running generations are expected to cost, divided by its weight. Of the accounts that want tokens,
because a request waits or because the engine has not computed its prompt yet, the one with the least position is owed
the most. All that are at most `TOLERANCE` ahead of it are within their share: among them the order of the queue
decides, as if there was one owner. The others wait until the rest have caught up or want no more.

An owner that was idle begins where the accounts that wanted tokens meanwhile have come to. It keeps `TOLERANCE` of the
credit that it had, at most: most users type and pause, and would else get less than one who always asks.
"""

import operator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

TOLERANCE = 512.0
"""Tokens by which an account of weight 1 may be ahead of another one before that goes first. With less, accounts that
ask for the same would differ by chance, and the order of deadlines would be lost."""
SLOT_TOKENS = 384.0
"""A running generation counts as so many tokens at least, so that while others wait, an account has one slot more than
they at most. More than half of `TOLERANCE`, and less than it: a user's prefetch does not delay the user's next key."""


@dataclass(slots=True, eq=False)
class Account:
    """The tokens of an owner, a tenant or a user of a tenant, divided by the weight that it had at the time."""

    position: float
    """Tokens computed, and those that the running generations are expected to cost."""
    running: float = 0.0
    """Those that the running generations are expected to cost."""
    num_wants: int = 0
    """Of a user: requests that wait and prompts in the engine. Of a tenant: users that have any."""

    def begin(self, expected: float) -> None:
        """Charge what a generation that begins is expected to cost."""
        self.running += expected
        self.position += expected

    def end(self, expected: float, computed: float) -> None:
        """Replace the expected tokens of a generation by those computed."""
        self.running -= expected
        self.position += computed - expected


AccountT = TypeVar("AccountT", bound=Account)
_position = operator.attrgetter("position")


class Level(Generic[AccountT]):
    """The accounts that share with each other."""

    def __init__(self) -> None:
        """Begin with none."""
        self.now = 0.0
        """Virtual time in tokens: what the account that is owed the most had been served at the last turn."""
        self.wanting: dict[AccountT, None] = {}

    def want(self, account: AccountT) -> bool:
        """Count one more want; return whether it is the account's only one. Then it loses credit over the tolerance."""
        account.num_wants += 1
        if account.num_wants > 1:
            return False
        self.wanting[account] = None
        account.position = max(account.position, self.now - TOLERANCE + account.running)
        return True

    def unwant(self, account: AccountT) -> bool:
        """Count one want less; return whether it was the account's last one."""
        account.num_wants -= 1
        if account.num_wants:
            return False
        del self.wanting[account]
        return True

    def limit(self) -> float:
        """Return the position up to which accounts are within their share, and move the time on."""
        least = min(self.wanting, key=_position)
        self.now = max(self.now, least.position - least.running)
        return least.position + TOLERANCE

    def furthest(self, own: AccountT | None) -> AccountT | None:
        """Return the account that is furthest over its share, `own` included; None if none is over it."""
        accounts = self.wanting if own is None or own.num_wants else [*self.wanting, own]
        most = max(accounts, key=_position, default=None)
        return most if most is not None and most.position > self.limit() else None


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


class Charge(NamedTuple):
    """What a running generation is expected to cost, and whom."""

    user: User
    num_tokens: float
    tenant_tokens: float
    """The same, divided by the weight of the tenant."""
