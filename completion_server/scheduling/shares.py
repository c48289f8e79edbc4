"""Weighted fair sharing of the engine's time, in tokens computed: between tenants, and between a tenant's users. Pure.

This is start-time fair queueing in two levels. An account's position is the number of tokens computed for its owner,
and of those that its running generations are expected to cost, divided by its weight. Of the accounts that wait, the
one with the least position is owed the most. All that are at most `TOLERANCE` ahead of it count as within their share:
among them the order of the queue decides, as if there was one owner. The others wait until the rest have caught up or
want no more. So no slot stays empty for the sake of fairness.

An idle owner keeps no credit: when it asks again, it begins where the accounts that waited meanwhile have come to.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from completion_server.scheduling.queue import Key, Queue

TOLERANCE = 512.0
"""Tokens by which an account of weight 1 may be ahead of another one before that goes first. With less, accounts that
ask for the same would differ by chance, and the order of deadlines would be lost."""
SLOT_TOKENS = 384.0
"""A running generation counts as so many tokens at least, so that while others wait, an account has one slot more than
they at most. More than half of `TOLERANCE`, and less than it: a user's prefetch does not delay the user's next key."""


@dataclass(slots=True, eq=False)
class Account:
    """The tokens of an owner: a tenant, or a user of a tenant."""

    key: str
    weight: float = 1.0
    served: float = 0.0
    """Tokens computed, divided by the weight that the owner had then."""
    expected: float = 0.0
    """Tokens that the running generations are expected to cost."""
    num_running: int = 0
    """Generations that are charged to it and run."""
    rank: Key = ()
    """Of its first waiting request, in the order of the queue."""
    is_ahead: bool = False
    """Whether it was over its share when it was last looked at."""

    @property
    def position(self) -> float:
        """Tokens computed and expected, divided by the weight: the account with the least is owed the most."""
        return self.served + self.expected / self.weight

    def begin(self, num_tokens: float) -> None:
        """Charge a generation that begins with the tokens that it is expected to cost."""
        self.num_running += 1
        self.expected += num_tokens

    def end(self, num_expected: float, num_tokens: float) -> None:
        """Replace the expected tokens of a generation by those computed."""
        self.num_running -= 1
        self.expected = self.expected - num_expected if self.num_running else 0.0
        self.served += num_tokens / self.weight


AccountT = TypeVar("AccountT", bound=Account)


class Level(Generic[AccountT]):
    """The accounts that share with each other: those that wait, and whose turn is next."""

    def __init__(self) -> None:
        """Begin with none."""
        self.now = 0.0
        """Virtual time in tokens: what those that waited had been served at least when one of them got a slot."""
        self._waiting: dict[str, AccountT] = {}
        self._positions = Queue()
        # Each account that waits is in one of these.
        self._within = Queue()
        self._ahead = Queue()

    def __len__(self) -> int:
        """Return how many accounts wait."""
        return len(self._waiting)

    def enter(self, account: AccountT) -> None:
        """Take from an account that was idle the credit that it had."""
        account.served = max(account.served, self.now)

    def place(self, account: AccountT, rank: Key) -> None:
        """Let an account wait with its first request, or note that its position or first request has changed."""
        if account.key not in self._waiting:
            self._waiting[account.key] = account
            self.enter(account)
        account.rank = rank
        self._positions.add(account.key, (account.position,))
        if account.is_ahead:
            self._ahead.add(account.key, (account.position,))
        else:
            self._within.add(account.key, rank)

    def remove(self, account: AccountT) -> None:
        """Let an account wait no more; does nothing if it does not wait."""
        if self._waiting.pop(account.key, None) is None:
            return
        self._positions.remove(account.key)
        (self._ahead if account.is_ahead else self._within).remove(account.key)
        account.is_ahead = False

    def first(self) -> AccountT | None:
        """Return the account whose request is first, of those within their share; None if none waits."""
        nearest = self._positions.first()
        if nearest is None:
            return None
        limit = self._waiting[nearest].position + TOLERANCE
        while (key := self._ahead.first()) is not None and self._waiting[key].position <= limit:
            account = self._waiting[key]
            self._ahead.remove(key)
            self._within.add(key, account.rank)
            account.is_ahead = False
        while (key := self._within.first()) is not None and self._waiting[key].position > limit:
            account = self._waiting[key]
            self._within.remove(key)
            self._ahead.add(key, (account.position,))
            account.is_ahead = True
        return None if key is None else self._waiting[key]

    def advance(self, account: AccountT) -> None:
        """Move the time on, as an account gets a slot. It may be the only one that wants one, and not wait at all."""
        nearest = self._positions.first()
        self.now = max(self.now, account.served if nearest is None else self._waiting[nearest].served)

    def over_share(self, own: AccountT | None) -> AccountT | None:
        """Return the account that is furthest over its share; None if none is over it.

        `own` is a newcomer's, which need not wait; None if the newcomer is new here.
        """
        first, last = self._positions.first(), self._positions.last()
        if first is None or last is None:
            return None
        position = self.now if own is None else max(own.served, self.now) + own.expected / own.weight
        least, most = self._waiting[first].position, self._waiting[last].position
        if max(position, most) <= min(position, least) + TOLERANCE:
            return None
        return own if own is not None and position >= most else self._waiting[last]

    def last(self) -> AccountT | None:
        """Return the account that is furthest over its share, else the one whose first request is last of all."""
        first, last = self._positions.first(), self._positions.last()
        if first is None or last is None:
            return None
        is_over = self._waiting[last].position > self._waiting[first].position + TOLERANCE
        return self._waiting[last if is_over else self._within.last() or last]


@dataclass(slots=True, eq=False)
class User(Account):
    """The account of a user, and its waiting requests."""

    tenant: "Tenant" = field(kw_only=True)
    queue: Queue = field(default_factory=Queue)


@dataclass(slots=True, eq=False)
class Tenant(Account):
    """The account of a tenant, and those of its users."""

    users: Level[User] = field(default_factory=Level)
    accounts: dict[str, User] = field(default_factory=dict)
    """Those that wait, that run, and some that are idle."""


@dataclass(slots=True)
class Charge:
    """What a running generation is expected to cost, and whom."""

    user: User
    num_tokens: float
