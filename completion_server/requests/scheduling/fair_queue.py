"""The queue of waiting requests, in the order of their owners' shares and then of `RequestQueue`. Pure."""

from completion_server.requests.scheduling.queue import QueueOrder, RequestQueue
from completion_server.requests.scheduling.requests import Generation, LiveRequest
from completion_server.requests.scheduling.shares import SLOT_TOKENS, Level, Tenant, User

_MAX_ACCOUNTS = 4096
"""Accounts in memory, before those of users without a request are forgotten."""


class FairQueue(RequestQueue):
    """A queue that shares the slots between tenants and their users, by the tokens that were computed for them."""

    def __init__(self, order: QueueOrder) -> None:
        """Begin empty."""
        super().__init__(order)
        self._level: Level[Tenant] = Level()
        self._tenants: dict[str, Tenant] = {}
        self._max_accounts = _MAX_ACCOUNTS
        self.num_accounts = 0
        """Of users and tenants."""
        self.prompts: dict[Generation, User] = {}
        """Running generations whose prompts the engine has not computed yet, and their owners."""

    def add(self, request: LiveRequest) -> None:
        """Let a request wait."""
        super().add(request)
        user = request.account = self._account(request)
        user.num_waiting += 1
        if user.num_waiting == 1:
            tenant = user.tenant
            tenant.users.enter(user)
            if len(tenant.users.waiting) == 1:
                self._level.enter(tenant)

    def remove(self, request: LiveRequest) -> None:
        """Let a request wait no longer."""
        super().remove(request)
        user = request.account
        user.num_waiting -= 1
        if not user.num_waiting:
            tenant = user.tenant
            del tenant.users.waiting[user]
            if not tenant.users.waiting:
                del self._level.waiting[tenant]

    def first(self) -> LiveRequest | None:
        """Return the request whose turn is next; None if all that wait are of owners over their share."""
        limit, limits = self._level.limit(), dict[Tenant, float]()
        for *_, request in self._waiting:
            user = request.account
            tenant = user.tenant
            if tenant.position > limit:
                continue
            if tenant not in limits:
                limits[tenant] = tenant.users.limit()
            if user.position <= limits[tenant]:
                return request
        return None

    def least_over_share(self) -> LiveRequest:
        """Return the request of the owner with the least position, of those that wait."""
        return min(self, key=lambda each: (each.account.tenant.position, each.account.position))

    def last_behind(self, request: LiveRequest) -> LiveRequest | None:
        """Return the request that gives way to a newcomer in a full queue; None if the newcomer does.

        It is the last one of the owner furthest over its share, or of all if none is over it. If that is the newcomer's
        own, the newcomer has to go before it.
        """
        own = self._account(request)
        tenant = self._level.furthest_over(own.tenant)
        is_own = tenant is None or tenant is own.tenant
        user = own.tenant.users.furthest_over(own) if tenant is None or is_own else tenant.users.furthest_over(None)
        is_own = is_own and user in {None, own}
        for *_, last in reversed(self._waiting):
            if user in {None, last.account} and tenant in {None, last.account.tenant}:
                return last if not is_own or self.rank(request) < self.rank(last) else None
        return None

    def num_ahead(self, request: LiveRequest) -> int:
        """Return how many requests are served before a newcomer, at most.

        An owner with many requests gets one slot in a turn of all owners that wait.
        """
        user = self._account(request)
        num_users = len(user.tenant.users.waiting) + (not user.num_waiting)
        num_tenants = len(self._level.waiting) + (not user.tenant.users.waiting)
        return min(super().num_ahead(request), (user.num_waiting + 1) * num_users * num_tenants - 1)

    # What generations cost

    def start(self, request: LiveRequest) -> None:
        """Let a request wait no longer, and charge its owner with the tokens that its generation may cost."""
        self.remove(request)
        user, num_tokens = request.account, max(SLOT_TOKENS, request.num_new_tokens)
        tenant = user.tenant
        by_weight = num_tokens / tenant.weight
        user.position += num_tokens
        user.running += num_tokens
        tenant.position += by_weight
        tenant.running += by_weight
        request.generation.charge = user, num_tokens, by_weight
        self.prompts[request.generation] = user
        tenant.users.begin(user)
        self._level.begin(tenant)

    def computed(self, generation: Generation) -> None:
        """Note that the engine has computed a generation's prompt, or gave it up."""
        user = self.prompts.pop(generation, None)
        if user is not None:
            user.tenant.users.computed(user)
            self._level.computed(user.tenant)

    def settle(self, generation: Generation) -> None:
        """Charge the tokens computed for a generation that no request reads any more, the first time."""
        charge, generation.charge = generation.charge, None
        if charge is None:
            return
        user, num_expected, by_weight = charge
        tenant = user.tenant
        num_tokens = generation.num_tokens + (generation.num_new_tokens if generation.has_prompt else 0)
        user.position += num_tokens - num_expected
        user.running -= num_expected
        tenant.position += num_tokens / tenant.weight - by_weight
        tenant.running -= by_weight
        self.computed(generation)

    def _account(self, request: LiveRequest) -> User:
        """Return the account of a request's owner, a new one if it has none."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = Tenant(self._level.now)
            self.num_accounts += 1
        tenant.weight = request.weight
        user = tenant.accounts.get(request.owner)
        if user is None:
            user = tenant.accounts[request.owner] = User(tenant.users.now, tenant=tenant)
            self.num_accounts += 1
            if self.num_accounts > self._max_accounts:
                self._forget_idle(user)
        return user

    def _forget_idle(self, new: User) -> None:
        """Forget the accounts without a request, but not that of a newcomer."""
        for name, tenant in list(self._tenants.items()):
            accounts = tenant.accounts.items()
            tenant.accounts = {key: user for key, user in accounts if user.num_waiting or user.running or user is new}
            if not tenant.accounts:
                del self._tenants[name]
        self.num_accounts = sum(1 + len(tenant.accounts) for tenant in self._tenants.values())
        self._max_accounts = max(_MAX_ACCOUNTS, 2 * self.num_accounts)
