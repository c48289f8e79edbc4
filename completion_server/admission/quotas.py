"""What one caller may ask of the server: requests, and tokens that the engine computes. Pure.

A request is charged when it is taken in, with the tokens that its prompt is expected to cost; what it really cost
replaces these when it ends. Callers choose their names, so each address has limits of its own beside those of the users
that it names.
"""

from dataclasses import dataclass

from completion_server.admission.gate import AdmissionSettings
from completion_server.admission.rate_limiter import RateLimiter
from completion_server.core.request import Caller

_MAX_WAIT_S = 10.0
"""However many tokens were computed before they could be charged, callers wait no longer."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Why a request is over a limit, and until when."""

    wait_s: float
    """Seconds after which the caller may ask again."""
    peer: str = ""
    """The address whose limit it is; "" for the user's own."""


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
            # Not a burst for each of its users, with which an attacker of many names would have the engine for seconds.
            RateLimiter(peer_tokens, max(settings.user_token_burst, peer_tokens), _MAX_WAIT_S),
        ]

    def excess(self, caller: Caller, now: float) -> Excess | None:
        """Return which limit a request of this caller is over, if any."""
        wait_s = max(bucket.delay_s(caller.owner, now) for bucket in self._users)
        if wait_s:
            return Excess(wait_s)
        if caller.peer:
            wait_s = max(bucket.delay_s(caller.peer, now) for bucket in self._peers)
            if wait_s:
                return Excess(wait_s, caller.peer)
        return None

    def charge_request(self, caller: Caller, now: float) -> None:
        """Charge a request that is taken in."""
        self._users[0].charge(caller.owner, now)
        if caller.peer:
            self._peers[0].charge(caller.peer, now)

    def reserve(self, caller: Caller, num_tokens: int, now: float) -> "Reservation":
        """Charge the tokens that a request is expected to cost."""
        self.charge_tokens(caller, num_tokens, now)
        return Reservation(self, caller, num_tokens)

    def charge_tokens(self, caller: Caller, num_tokens: int, now: float) -> None:
        """Charge tokens that the engine computes for a caller; give them back with a negative number."""
        self._users[1].charge(caller.owner, now, num_tokens)
        if caller.peer:
            self._peers[1].charge(caller.peer, now, num_tokens)


class Reservation:
    """Tokens charged for a request on arrival, until the tokens really computed take their place."""

    def __init__(self, quotas: Quotas, caller: Caller, num_tokens: int) -> None:
        """Hold what was charged."""
        self._quotas = quotas
        self._caller = caller
        self._num_tokens = num_tokens

    def settle(self, num_computed: int, now: float) -> None:
        """Charge computed tokens. The first call gives the reserved ones back.

        In one step, since no bucket holds more debt than callers may be made to wait for.
        """
        self._quotas.charge_tokens(self._caller, num_computed - self._num_tokens, now)
        self._num_tokens = 0
