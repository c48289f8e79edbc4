"""Weighted fair sharing of the engine's time, in tokens computed: between tenants, and between a tenant's users. Pure.

This is start-time fair queueing in two levels. An account's position is the number of tokens computed for its owner,
and of those that its running generations are expected to cost, divided by its weight. Of the accounts that want tokens,
because a request waits or because the engine has not computed its prompt yet, the one with the least position is owed
the most. All that are at most `TOLERANCE` ahead of it count as within their share: among them the order of the queue
decides, as if there was one owner. The others wait until the rest have caught up or want no more.

An owner that was idle begins where the accounts that wanted tokens meanwhile have come to. It keeps `TOLERANCE` of the
credit that it had, at most: most users type and pause, and would else get less than one who always asks.
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
    num_prompts: int = 0
    """Those of them whose prompt the engine has not computed yet."""
    rank: Key = ()
    """Of its first waiting request, in the order of the queue; empty if none waits."""

    @property
    def position(self) -> float:
        """Tokens computed and expected, divided by the weight: the account with the least is owed the most."""
        return self.served + self.expected / self.weight

    def begin(self, num_tokens: float) -> None:
        """Charge a generation that begins with the tokens that it is expected to cost."""
        self.num_running += 1
        self.num_prompts += 1
        self.expected += num_tokens

    def end(self, num_expected: float, num_tokens: float) -> None:
        """Replace the expected tokens of a generation by those computed."""
        self.num_running -= 1
        self.expected = self.expected - num_expected if self.num_running else 0.0
        self.served += num_tokens / self.weight


AccountT = TypeVar("AccountT", bound=Account)


class Level(Generic[AccountT]):
    """The accounts that share with each other: those that want tokens, and whose turn is next."""

    def __init__(self) -> None:
        """Begin with none."""
        self.now = 0.0
        """Virtual time in tokens: what the account that was owed the most had been served when one got a slot."""
        self._wanting: dict[str, AccountT] = {}
        self._positions = Queue()
        """Of all that want tokens."""
        self._waiting = Queue()
        """The positions of those with a request that waits. Each of them is in one of the next three."""
        self._within = Queue()
        """Those within their share, by the ranks of their requests; some that are over it until their turn comes."""
        self._over = Queue()
        self._blocked: set[str] = set()

    def __len__(self) -> int:
        """Return how many accounts have requests that wait."""
        return len(self._waiting)

    def enter(self, account: AccountT) -> None:
        """Take from an account that was idle the credit beyond the tolerance."""
        account.served = max(account.served, self.now - TOLERANCE)

    def place(self, account: AccountT, rank: Key) -> None:
        """Note an account's new position and the rank of its first waiting request, which is empty if none waits."""
        key, wants, waited = account.key, bool(rank) or account.num_prompts > 0, bool(account.rank)
        account.rank = rank
        if key not in self._wanting:
            if not wants:
                return
            self._wanting[key] = account
            self.enter(account)
        position = (account.position,)
        if waited:
            self._blocked.discard(key)
        if not rank:
            for queue in (self._waiting, self._within, self._over) if waited else ():
                queue.discard(key)
        else:
            self._waiting.add(key, position)
            if key in self._over:
                self._over.add(key, position)
            else:
                self._within.add(key, rank)
        if wants:
            self._positions.add(key, position)
        else:
            self._positions.remove(key)
            del self._wanting[key]

    def first(self) -> AccountT | None:
        """Return the account whose request is first, of those within their share; None if none of them waits."""
        nearest = self._positions.first()
        if nearest is None or not len(self._waiting):
            return None
        limit = self._wanting[nearest].position + TOLERANCE
        while (key := self._over.first()) is not None and self._wanting[key].position <= limit:
            self._over.remove(key)
            self._within.add(key, self._wanting[key].rank)
        while (key := self._within.first()) is not None and self._wanting[key].position > limit:
            self._within.remove(key)
            self._over.add(key, (self._wanting[key].position,))
        return None if key is None else self._wanting[key]

    def block(self, account: AccountT) -> None:
        """Pass over an account within its share, until it is placed again: the accounts in it are over theirs."""
        self._within.remove(account.key)
        self._blocked.add(account.key)

    def least(self) -> AccountT | None:
        """Return the account with the least position of those with a request that waits."""
        key = self._waiting.first()
        return None if key is None else self._wanting[key]

    def advance(self, account: AccountT) -> None:
        """Move the time on, as an account gets a slot."""
        nearest = self._positions.first()
        if nearest is not None and self._wanting[nearest].position < account.position:
            account = self._wanting[nearest]
        self.now = max(self.now, account.served)

    def over_share(self, own: AccountT | None) -> AccountT | None:
        """Return the account that is furthest over its share, a waiting one or `own`; None if none is over it.

        `own` is a newcomer's, which need not wait; None if the newcomer is new here.
        """
        first, last = self._waiting.first(), self._waiting.last()
        if first is None or last is None:
            return None
        position = self.now if own is None else max(own.served, self.now) + own.expected / own.weight
        least, most = self._wanting[first].position, self._wanting[last].position
        if max(position, most) <= min(position, least) + TOLERANCE:
            return None
        return own if own is not None and position >= most else self._wanting[last]

    def last(self) -> AccountT | None:
        """Return the waiting account that is furthest over its share, else the one whose first request is last."""
        first, last = self._waiting.first(), self._waiting.last()
        if first is None or last is None:
            return None
        is_over = self._wanting[last].position > self._wanting[first].position + TOLERANCE
        return self._wanting[last if is_over else self._within.last() or last]


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
    num_prompt_tokens: int
    """Expected prompt tokens that the engine has not computed yet."""
    has_prompt: bool = False
    """Whether the engine has computed its prompt."""
