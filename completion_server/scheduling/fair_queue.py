"""The queue of waiting requests, in the order of their owners' shares and then of `RequestQueue`. Pure."""

from completion_server.scheduling.queue import QueueOrder, RequestQueue
from completion_server.scheduling.requests import Generation, LiveRequest
from completion_server.scheduling.shares import SLOT_TOKENS, Charge, Level, Tenant, User

_MAX_ACCOUNTS = 4096
"""Users in memory before those without a request are forgotten."""


class FairQueue(RequestQueue):
    """A queue that shares the slots between tenants and their users, by the tokens that were computed for them."""

    def __init__(self, order: QueueOrder) -> None:
        """Begin empty."""
        super().__init__(order)
        self._level: Level[Tenant] = Level()
        self._tenants: dict[str, Tenant] = {}
        self._waiting_users: dict[str, User] = {}
        """By the id of the waiting request."""
        self.num_accounts = 0
        """Of users."""
        self._max_accounts = _MAX_ACCOUNTS

    def add(self, request: LiveRequest) -> None:
        """Let a request wait."""
        super().add(request)
        user = self._waiting_users[request.id] = self._account(request)
        user.num_waiting += 1
        self._want(user)

    def remove(self, request: LiveRequest) -> None:
        """Let a request wait no longer."""
        super().remove(request)
        user = self._waiting_users.pop(request.id)
        user.num_waiting -= 1
        self._unwant(user)

    def first(self) -> LiveRequest | None:
        """Return the request whose turn is next; None if all that wait are of owners over their share."""
        limit, limits = self._level.limit(), dict[Tenant, float]()
        for *_, request in self._waiting:
            user = self._waiting_users[request.id]
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

        def position(request: LiveRequest) -> tuple[float, float]:
            user = self._waiting_users[request.id]
            return user.tenant.position, user.position

        return min(self, key=position)

    def last_behind(self, request: LiveRequest) -> LiveRequest | None:
        """Return the request that gives way to a newcomer in a full queue; None if the newcomer does.

        It is the last one of the owner furthest over its share, or of all if none is over it. If that is the newcomer's
        own, the newcomer has to go before it.
        """
        own = self._account(request)
        tenant = self._level.furthest(own.tenant)
        user = (tenant or own.tenant).users.furthest(own if tenant in {None, own.tenant} else None)
        for *_, last in reversed(self._waiting):
            other = self._waiting_users[last.id]
            if other is user or (user is None and tenant in {None, other.tenant}):
                is_own = other is own if user is not None else tenant in {None, own.tenant}
                return last if not is_own or self.rank(request) < self.rank(last) else None
        return None

    def num_ahead(self, request: LiveRequest) -> int:
        """Return how many requests are served before a newcomer, at most.

        An owner with many requests gets one slot in a turn of all owners that want one.
        """
        user = self._account(request)
        num_users = len(user.tenant.users.wanting) + (not user.num_wants)
        num_tenants = len(self._level.wanting) + (not user.tenant.num_wants)
        return min(super().num_ahead(request), (user.num_waiting + 1) * num_users * num_tenants - 1)

    # What generations cost

    def start(self, request: LiveRequest) -> None:
        """Charge the owner of a waiting request, which is about to get a slot, with the tokens that it may cost."""
        user, num_tokens = self._waiting_users[request.id], max(SLOT_TOKENS, request.num_new_tokens)
        charge = request.generation.charge = Charge(user, num_tokens, num_tokens / user.tenant.weight)
        self._want(user)
        user.begin(num_tokens)
        user.tenant.begin(charge.tenant_tokens)

    def computed_prompt(self, generation: Generation) -> None:
        """Note that the engine has computed the prompt of a running generation."""
        if generation.charge is not None:
            self._unwant(generation.charge.user)

    def settle(self, generation: Generation) -> None:
        """Charge the tokens computed for a generation that no request reads any more, the first time."""
        charge, generation.charge = generation.charge, None
        if charge is None:
            return
        user = charge.user
        if generation.last is None:
            self._unwant(user)
        num_tokens = generation.num_tokens + (generation.num_new_tokens if generation.has_prompt else 0)
        user.end(charge.num_tokens, num_tokens)
        user.tenant.end(charge.tenant_tokens, num_tokens / user.tenant.weight)

    def _want(self, user: User) -> None:
        if user.tenant.users.want(user):
            self._level.want(user.tenant)

    def _unwant(self, user: User) -> None:
        if user.tenant.users.unwant(user):
            self._level.unwant(user.tenant)

    def _account(self, request: LiveRequest) -> User:
        """Return the account of a request's owner, a new one if it has none."""
        tenant = self._tenants.get(request.tenant)
        if tenant is None:
            tenant = self._tenants[request.tenant] = Tenant(self._level.now)
        tenant.weight = request.weight
        user = tenant.accounts.get(request.owner)
        if user is None:
            if self.num_accounts >= self._max_accounts:
                self._forget_idle()
                self._tenants.setdefault(request.tenant, tenant)
            user = tenant.accounts[request.owner] = User(tenant.users.now, tenant=tenant)
            self.num_accounts += 1
        return user

    def _forget_idle(self) -> None:
        """Forget the accounts without a request."""
        for name, tenant in list(self._tenants.items()):
            tenant.accounts = {key: user for key, user in tenant.accounts.items() if user.num_wants or user.running}
            if not tenant.accounts:
                del self._tenants[name]
        self.num_accounts = sum(len(tenant.accounts) for tenant in self._tenants.values())
        self._max_accounts = max(_MAX_ACCOUNTS, 2 * self.num_accounts)
