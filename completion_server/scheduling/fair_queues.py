"""The queues of waiting requests, in the order of the owners' shares and then of the queue. Pure.

Inside one user's requests, and between owners that are within their share, the order is that of `TriggerQueues`.
"""

import itertools
from collections import OrderedDict

from completion_server.scheduling.queue import QueueOrder, TriggerQueues
from completion_server.scheduling.requests import LiveRequest
from completion_server.scheduling.shares import SLOT_TOKENS, Charge, Level, Tenant, User

_MAX_IDLE = 1024
"""Users without a request whose accounts are kept, so that a user who was over its share still is a moment later."""
_FIRST_GUESS = 16.0
"""Generated tokens that a generation is expected to have, before the first has ended."""
_NEW_SHARE = 0.05


class FairQueues(TriggerQueues):
    """Queues that share the slots between tenants and their users, by the tokens that were computed for them."""

    def __init__(self, order: QueueOrder) -> None:
        """Begin empty."""
        super().__init__(order)
        self._new: dict[str, LiveRequest] = {}
        """Requests that are in no account's queue yet. One that gets its slot before another one waits never is."""
        self._root: Level[Tenant] = Level()
        self._tenants: dict[str, Tenant] = {}
        self._idle: OrderedDict[User, None] = OrderedDict()
        self._charges: dict[str, Charge] = {}
        self._arrivals = itertools.count()
        self._mean_generated = _FIRST_GUESS
        self.num_prompt_tokens = 0
        """Prompt tokens that the engine is expected to compute, of generations that have a slot and no token."""

    @property
    def num_accounts(self) -> int:
        """Accounts in memory, those of tenants included."""
        return sum(1 + len(tenant.accounts) for tenant in self._tenants.values())

    def add(self, request: LiveRequest) -> None:
        """Let a request wait."""
        super().add(request)
        self._new[request.id] = request

    def remove(self, request: LiveRequest) -> None:
        """Let a request wait no longer."""
        super().remove(request)
        if self._new.pop(request.id, None) is None:
            user = self._tenants[request.tenant].accounts[request.owner]
            user.queue.remove(request.id)
            self._place(user)
            self._rest(user)

    def first(self) -> LiveRequest | None:
        """Return the request whose turn is next."""
        if len(self) <= 1:
            return super().first()
        user = self._first_within()
        if user is None and (tenant := self._root.least()) is not None:
            user = tenant.users.first() or tenant.users.least()
        return None if user is None else self._first_of(user)

    def is_over_share(self) -> bool:
        """Return whether all requests that wait are of owners ahead of one whose prompt the engine computes now."""
        return bool(self.num_prompt_tokens) and self._first_within() is None

    def last_behind(self, request: LiveRequest) -> LiveRequest | None:
        """Return the request that gives way to a newcomer in a full queue; None if the newcomer does.

        It is the last one of the owner furthest over its share. Inside that, and if no owner is over its share, it is
        the last of the lowest class, if the newcomer goes before it.
        """
        self._place_new()
        tenant = self._tenants.get(request.tenant)
        over = self._root.over_share(tenant)
        if over is not None and over is not tenant:
            user = over.users.last()
            return None if user is None else self._last_of(user)
        if tenant is not None:
            own = tenant.accounts.get(request.owner)
            user = tenant.users.over_share(own)
            if user is not None and user is not own:
                return self._last_of(user)
            if user is not None or over is not None:
                user = user or tenant.users.last()
                last = None if user is None else self._last_of(user)
                return last if last is not None and self.rank(request) < self.rank(last) else None
        return super().last_behind(request)

    def num_ahead(self, request: LiveRequest) -> int:
        """Return how many requests are served before a newcomer, at most.

        An owner with many requests gets one slot in a turn of all owners that wait.
        """
        self._place_new()
        tenant = self._tenants.get(request.tenant)
        own = None if tenant is None else tenant.accounts.get(request.owner)
        num_own = 0 if own is None else len(own.queue)
        num_users = (0 if tenant is None else len(tenant.users)) + (not num_own)
        num_tenants = len(self._root) + (tenant is None or not len(tenant.users))
        return min(super().num_ahead(request), (num_own + 1) * num_users * num_tenants - 1)

    # What generations cost

    def start(self, request: LiveRequest) -> None:
        """Charge the account of a waiting request, which is about to get a slot, with the tokens that it may cost."""
        user = self._account(request)
        is_alone = len(self) == 1 and request.id in self._new
        if is_alone:
            user.tenant.weight = request.weight
            user.tenant.users.enter(user)
            self._root.enter(user.tenant)
            self._idle.pop(user, None)
        else:
            self._place_new()
        user.tenant.users.advance(user)
        self._root.advance(user.tenant)
        num_tokens = max(SLOT_TOKENS, request.num_new_tokens + self._mean_generated)
        user.begin(num_tokens)
        user.tenant.begin(num_tokens)
        self._charges[request.id] = Charge(user, num_tokens, request.num_new_tokens)
        self.num_prompt_tokens += request.num_new_tokens
        if is_alone:
            self._place(user)

    def computed(self, generation_id: str, num_tokens: int) -> bool:
        """Note the tokens computed for a running generation so far; return whether its prompt was among the latest."""
        charge = self._charges.get(generation_id)
        if charge is None or (charge.has_prompt and num_tokens <= charge.num_tokens):
            return False
        is_first = not charge.has_prompt
        num_more = max(0.0, num_tokens - charge.num_tokens)
        charge.num_tokens += num_more
        for account in (charge.user, charge.user.tenant):
            account.expected += num_more
            account.num_prompts -= is_first
        if is_first:
            charge.has_prompt = True
            self.num_prompt_tokens -= charge.num_prompt_tokens
        self._place(charge.user)
        return is_first

    def settle(self, generation_id: str, num_prompt_tokens: int, num_generated: int) -> None:
        """Charge the tokens that were computed for a generation that no request reads any more, the first time."""
        charge = self._charges.pop(generation_id, None)
        if charge is None:
            return
        self._mean_generated += (num_generated - self._mean_generated) * _NEW_SHARE
        user = charge.user
        for account in (user, user.tenant):
            account.end(charge.num_tokens, num_prompt_tokens + num_generated)
            account.num_prompts -= not charge.has_prompt
        self.num_prompt_tokens -= 0 if charge.has_prompt else charge.num_prompt_tokens
        self._place(user)
        self._rest(user)

    def _account(self, request: LiveRequest) -> User:
        """Return a request's account, a new one if its owner has none."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = Tenant(request.tenant, served=self._root.now)
        user = tenant.accounts.get(request.owner)
        if user is None:
            user = tenant.accounts[request.owner] = User(request.owner, served=tenant.users.now, tenant=tenant)
        return user

    def _place_new(self) -> None:
        """Put new requests into the queues of their accounts."""
        for request in self._new.values():
            user = self._account(request)
            user.tenant.weight = request.weight
            user.queue.add(request.id, (request.trigger, self.order(request), next(self._arrivals)))
            self._idle.pop(user, None)
            self._place(user)
        self._new.clear()

    def _place(self, user: User) -> None:
        """Note that an account's position or its first request has changed."""
        tenant, first = user.tenant, user.queue.first()
        tenant.users.place(user, () if first is None else user.queue.key(first))
        head = tenant.users.first() or tenant.users.least()
        self._root.place(tenant, () if head is None else head.rank)

    def _first_within(self) -> User | None:
        """Return the account whose request is next, of those within their share in a tenant within its share."""
        self._place_new()
        while (tenant := self._root.first()) is not None:
            if (user := tenant.users.first()) is not None:
                return user
            self._root.block(tenant)
        return None

    def _rest(self, user: User) -> None:
        """Keep the account of an owner without a request for a while."""
        if user.num_running or len(user.queue):
            return
        self._idle[user] = None
        while len(self._idle) > _MAX_IDLE:
            oldest, _ = self._idle.popitem(last=False)
            del oldest.tenant.accounts[oldest.key]
            if not oldest.tenant.accounts:
                del self._tenants[oldest.tenant.key]

    def _first_of(self, user: User) -> LiveRequest | None:
        first = user.queue.first()
        return None if first is None else self._requests[first]

    def _last_of(self, user: User) -> LiveRequest | None:
        last = user.queue.last()
        return None if last is None else self._requests[last]
