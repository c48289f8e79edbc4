"""Limits the requests of each user and tenant, and the tokens that the engine computes for them. Pure.

An accepted request is charged with the expected number of tokens; the number of computed tokens replaces it when the
request ends. Callers choose their user names themselves, so each network address has limits of its own beside those of
its users. These are limits of one replica.

An address may have one user or a whole office, and nothing tells them apart. So its limits are a committed rate: what
exceeds them is accepted while the engine has capacity to spare, and is then not charged to the address.
"""

from collections.abc import Iterator

from completion_server.core.errors import Limit
from completion_server.core.request import Caller
from completion_server.requests.limits.file_quotas import FileQuotas
from completion_server.requests.limits.quota_table import burst_of
from completion_server.requests.limits.rate_limiter import MAX_WAIT_S, Excess, RateLimiter, RateLimits
from completion_server.requests.limits.settings import AdmissionSettings


class Quotas:
    """The token buckets of all users, tenants and addresses."""

    def __init__(self, settings: AdmissionSettings, named: FileQuotas | None = None) -> None:
        """Start with full buckets. `named` has the limits of users and tenants that differ from the settings."""
        num_users, user_tokens = settings.num_users_per_peer, settings.user_tokens_per_s
        self._request_burst_s, self._token_burst_s = settings.request_burst_s, settings.token_burst_s
        self._users = self._limits(
            Limit("admission.user_requests_per_s", settings.user_requests_per_s),
            Limit("admission.user_tokens_per_s", user_tokens),
        )
        peer_requests, peer_tokens = num_users * settings.user_requests_per_s, num_users * user_tokens
        self._peers = RateLimits(
            RateLimiter(peer_requests, num_users * burst_of(settings.user_requests_per_s, self._request_burst_s)),
            # One burst for all users: otherwise an attacker with many names could occupy the engine for seconds.
            RateLimiter(peer_tokens, max(burst_of(user_tokens, self._token_burst_s), peer_tokens), MAX_WAIT_S),
            Limit("admission.users_per_peer", num_users),
            Limit("admission.users_per_peer", num_users),
        )
        self._tenants: RateLimits | None = None
        self._named = named
        if settings.tenant_requests_per_s or settings.tenant_tokens_per_s or named is not None:
            self._tenants = self._limits(
                Limit("admission.tenant_requests_per_s", settings.tenant_requests_per_s),
                Limit("admission.tenant_tokens_per_s", settings.tenant_tokens_per_s),
            )

    def _limits(self, requests: Limit, tokens: Limit) -> RateLimits:
        return RateLimits(
            RateLimiter(requests.allowed, burst_of(requests.allowed, self._request_burst_s)),
            RateLimiter(tokens.allowed, burst_of(tokens.allowed, self._token_burst_s), MAX_WAIT_S),
            requests,
            tokens,
        )

    def excess(self, caller: Caller, now: float) -> Excess | None:
        """Return the limit that a request of this caller exceeds, None if there is none."""
        found = (limits.excess(key, now, peer) for limits, key, peer in self._limits_of(caller))
        return next(filter(None, found), None)

    def charge_request(self, caller: Caller, now: float, *, charges_peer: bool = True) -> None:
        """Charge an accepted request; not to its address if it exceeds the limits of that."""
        for limits, key, _peer in self._limits_of(caller, charges_peer=charges_peer):
            limits.requests.charge(key, now)

    def reserve(self, caller: Caller, num_tokens: int, now: float, *, charges_peer: bool = True) -> "Reservation":
        """Charge the expected tokens of a request; not to its address if it exceeds the limits of that."""
        self.charge_tokens(caller, num_tokens, now, charges_peer=charges_peer)
        return Reservation(self, caller, num_tokens, charges_peer=charges_peer)

    def charge_tokens(self, caller: Caller, num_tokens: int, now: float, *, charges_peer: bool = True) -> None:
        """Charge tokens that the engine computes for a caller; a negative number refunds them."""
        for limits, key, _peer in self._limits_of(caller, charges_peer=charges_peer):
            limits.charge_tokens(key, now, num_tokens)

    def _limits_of(self, caller: Caller, *, charges_peer: bool = True) -> Iterator[tuple[RateLimits, str, str]]:
        """Yield the limits of a caller, its key in them, and its address if they are those of the address."""
        owner, tenant_key, named = caller.owner, caller.tenant_key, self._named
        yield self._users if named is None else named.of_user(owner, self._users), owner, ""
        if self._tenants is not None:
            yield self._tenants if named is None else named.of_tenant(tenant_key, self._tenants), tenant_key, ""
        if charges_peer and (peer := caller.limited_peer):
            yield self._peers, peer, peer


class Reservation:
    """The expected tokens charged for a request, until the computed tokens replace them."""

    def __init__(self, quotas: Quotas, caller: Caller, num_tokens: int, *, charges_peer: bool = True) -> None:
        """Hold the number of tokens charged."""
        self._quotas = quotas
        self._caller = caller
        self._num_tokens = num_tokens
        self._charges_peer = charges_peer

    def settle(self, num_computed: int, now: float) -> None:
        """Charge computed tokens. The first call refunds the reserved ones.

        Both happen in one step: a bucket caps its debt, so charging first and refunding later would refund too much.
        """
        num_tokens = num_computed - self._num_tokens
        self._quotas.charge_tokens(self._caller, num_tokens, now, charges_peer=self._charges_peer)
        self._num_tokens = 0
