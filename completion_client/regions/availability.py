"""Which endpoints have failed, and when users return to those that come back. Pure: the caller gives the time.

States of an endpoint, which all users of a process share:

    USABLE   -- a connection or a call is lost ------------->  SUSPECT   (a health check is asked for)
    SUSPECT  -- the check is answered ---------------------->  USABLE    (users return at once)
    SUSPECT, USABLE  -- no answer, or NOT_SERVING ---------->  FAILED
    FAILED   -- a check is answered with SERVING ----------->  USABLE    (users return one after another)

Only a check ends a failure: a server that drains still answers the requests that it has accepted.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from completion_client.endpoint import Endpoint

_SEPARATOR = "\x00"
"""Names can't contain it."""
_HASH_BYTES = 8


class Health(Enum):
    """The state of an endpoint as this process sees it."""

    USABLE = "usable"
    SUSPECT = "suspect"
    FAILED = "failed"


@dataclass(slots=True)
class _State:
    health: Health = Health.USABLE
    why: str = ""
    came_back_at_s: float = -math.inf
    num_returns: int = 0


@dataclass(slots=True)
class Availability:
    """The health of endpoints, and the times at which users return to them."""

    endpoints: Iterable[Endpoint]
    return_spread_s: float
    seed: str
    """Users' places in the order of their return follow from it."""
    _states: dict[Endpoint, _State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with usable endpoints."""
        self._states = {each: _State() for each in self.endpoints}

    def suspected(self, endpoint: Endpoint, why: str) -> bool:
        """Note that a connection or a call was lost; return whether the endpoint was usable until now."""
        return self._leave(endpoint, Health.SUSPECT, why) is Health.USABLE

    def failed(self, endpoint: Endpoint, why: str) -> bool:
        """Note that an endpoint gives no answer or does not serve; return whether it had not failed before."""
        return self._leave(endpoint, Health.FAILED, why) is not Health.FAILED

    def answered(self, endpoint: Endpoint, now_s: float) -> bool:
        """Note a health check that was answered with SERVING; return whether the endpoint was not usable until now."""
        state = self._states[endpoint]
        before, state.health, state.why = state.health, Health.USABLE, ""
        if before is Health.FAILED:
            state.came_back_at_s = now_s
            state.num_returns += 1
        return before is not Health.USABLE

    def health(self, endpoint: Endpoint) -> Health:
        """Return the state of an endpoint."""
        return self._states[endpoint].health

    def why(self, endpoint: Endpoint) -> str:
        """Return why an endpoint is not usable; "" if it is."""
        return self._states[endpoint].why

    def usable_at_s(self, endpoint: Endpoint, user: str, now_s: float) -> float:
        """Return from when on a user uses an endpoint; infinity while it is suspect or has failed."""
        state = self._states[endpoint]
        if state.health is not Health.USABLE:
            return math.inf
        if now_s >= state.came_back_at_s + self.return_spread_s:
            return -math.inf
        return state.came_back_at_s + self.return_spread_s * self._share(endpoint, user, state.num_returns)

    def _leave(self, endpoint: Endpoint, health: Health, why: str) -> Health:
        state = self._states[endpoint]
        before = state.health
        if before is not Health.FAILED or health is Health.FAILED:
            state.health, state.why = health, why
        return before

    def _share(self, endpoint: Endpoint, user: str, num_returns: int) -> float:
        """Return the user's place in the order of a return, 0 to 1. Each return draws a new place."""
        return hash_of(self.seed, endpoint.address, user, str(num_returns)) / 2.0 ** (8 * _HASH_BYTES)


def hash_of(*names: str) -> int:
    """Return 64 bits that follow from names alone, the same in every process and on every machine."""
    key = _SEPARATOR.join(names).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=_HASH_BYTES).digest(), "big")
