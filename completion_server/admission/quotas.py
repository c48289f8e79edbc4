"""Limits the requests of each user and the tokens that the engine computes for each user. Pure.

An accepted request is charged with the expected number of tokens; the number of computed tokens replaces it when the
request ends. Callers choose their user names themselves, so each network address has limits of its own beside those of
its users.
"""

from dataclasses import dataclass

from completion_server.admission.gate import AdmissionSettings
from completion_server.admission.rate_limiter import RateLimiter
from completion_server.core.request import Caller

_MAX_WAIT_S = 10.0
"""The longest wait. Tokens are computed before they can be charged, so the debt has no other bound."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that a request exceeds."""

    wait_s: float
    """Seconds after which the caller may retry."""
    peer: str = ""
    """The address whose limit is exceeded; "" if it is the user's own limit."""


class Quotas:
    """The token buckets of all users and addresses."""

    def __init__(self, settings: AdmissionSettings) -> None:
        """Start with full buckets."""
        requests = settings.user_requests_per_s, settings.user_burst
        tokens = settings.user_tokens_per_s, settings.user_token_burst
        num_users = settings.num_users_per_peer
        self._users = [RateLimiter(*requests), RateLimiter(*tokens, _MAX_WAIT_S)]
        peer_requests, peer_tokens = (num_users * rate for rate, _burst in (requests, tokens))
        self._peers = [
            RateLimiter(peer_requests, num_users * settings.user_burst),
            # One burst for all users: otherwise an attacker with many names could occupy the engine for seconds.
            RateLimiter(peer_tokens, max(settings.user_token_burst, peer_tokens), _MAX_WAIT_S),
        ]

    def excess(self, caller: Caller, now: float) -> Excess | None:
        """Return the limit that a request of this caller exceeds, None if there is none."""
        wait_s = max(bucket.delay_s(caller.owner, now) for bucket in self._users)
        if wait_s:
            return Excess(wait_s)
        if caller.peer:
            wait_s = max(bucket.delay_s(caller.peer, now) for bucket in self._peers)
            if wait_s:
                return Excess(wait_s, caller.peer)
        return None

    def charge_request(self, caller: Caller, now: float) -> None:
        """Charge an accepted request."""
        self._users[0].charge(caller.owner, now)
        if caller.peer:
            self._peers[0].charge(caller.peer, now)

    def reserve(self, caller: Caller, num_tokens: int, now: float) -> "Reservation":
        """Charge the expected tokens of a request."""
        self.charge_tokens(caller, num_tokens, now)
        return Reservation(self, caller, num_tokens)

    def charge_tokens(self, caller: Caller, num_tokens: int, now: float) -> None:
        """Charge tokens that the engine computes for a caller; a negative number refunds them."""
        self._users[1].charge(caller.owner, now, num_tokens)
        if caller.peer:
            self._peers[1].charge(caller.peer, now, num_tokens)


class Reservation:
    """The expected tokens charged for a request, until the computed tokens replace them."""

    def __init__(self, quotas: Quotas, caller: Caller, num_tokens: int) -> None:
        """Hold the number of tokens charged."""
        self._quotas = quotas
        self._caller = caller
        self._num_tokens = num_tokens

    def settle(self, num_computed: int, now: float) -> None:
        """Charge computed tokens. The first call refunds the reserved ones.

        Both happen in one step: a bucket caps its debt, so charging first and refunding later would refund too much.
        """
        self._quotas.charge_tokens(self._caller, num_computed - self._num_tokens, now)
        self._num_tokens = 0
