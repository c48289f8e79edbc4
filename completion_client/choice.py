"""Which endpoints have failed, and the order in which one user tries them. Pure: the caller gives the time.

States of an endpoint, which all users of a process share:

    USABLE   -- a connection or a call is lost ------------->  SUSPECT   (a health check is asked for)
    SUSPECT  -- the check is answered ---------------------->  USABLE    (users return at once)
    SUSPECT, USABLE  -- no answer, or NOT_SERVING ---------->  FAILED
    FAILED   -- a check is answered with SERVING ----------->  USABLE    (users return one after another)

Only a check ends a failure: a server that drains still answers the requests that it has accepted.

The order of preference is by distance, tier after tier, and within a tier by the user's hash, so that a user's
documents stay in the prefix cache of one server of the nearest region. Endpoints that have failed, that the user has
not returned to yet, or that refused the user of late come after the others.

Rendezvous (highest random weight) hashing gives each user an order of all replicas, the same in every process and on
every machine. If one of n replicas goes, 1/n of the users move, each to the second of its own order; if one is added,
the users that move all go to it. Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
Transactions on Networking 6 (1998).
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from completion_client.distances import Distances
from completion_client.endpoint import Endpoint
from completion_client.region_settings import RoutingSettings

_SEPARATOR = "\x00"
"""Names can't contain it."""
_HASH_BYTES = 8

EndpointOrder = Callable[[Iterable[Endpoint], str, str], Sequence[Endpoint]]
"""Returns the replicas of a user and a tenant in the order of preference."""


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


class Availability:
    """The health of endpoints, and the times at which users return to them."""

    def __init__(self, endpoints: Iterable[Endpoint], return_spread_s: float, seed: str) -> None:
        """Begin with usable endpoints. Users' places in the order of their return follow from `seed`."""
        self._states = {each: _State() for each in endpoints}
        self._return_spread_s = return_spread_s
        self._seed = seed

    def suspected(self, endpoint: Endpoint, why: str) -> bool:
        """Note that a connection or a call was lost; return whether the endpoint was usable until now."""
        state = self._states[endpoint]
        before = state.health
        if before is not Health.FAILED:
            state.health, state.why = Health.SUSPECT, why
        return before is Health.USABLE

    def failed(self, endpoint: Endpoint, why: str) -> bool:
        """Note that an endpoint gives no answer or does not serve; return whether it had not failed before."""
        state = self._states[endpoint]
        before, state.health, state.why = state.health, Health.FAILED, why
        return before is not Health.FAILED

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
        """Return from when on a user uses an endpoint; infinity while it is suspect or has failed.

        Each return draws a new order of the users.
        """
        state = self._states[endpoint]
        if state.health is not Health.USABLE:
            return math.inf
        if now_s >= state.came_back_at_s + self._return_spread_s:
            return -math.inf
        drawn = _hash_of(self._seed, endpoint.address, user, str(state.num_returns))
        return state.came_back_at_s + self._return_spread_s * drawn / 2.0 ** (8 * _HASH_BYTES)


def rendezvous_order(endpoints: Iterable[Endpoint], user: str, tenant: str = "") -> tuple[Endpoint, ...]:
    """Return a user's order of preference. Endpoints are told apart by their addresses; their order does not matter."""
    return tuple(sorted(endpoints, key=lambda each: (-_hash_of(each.address, tenant, user), each.address)))


@dataclass(slots=True)
class _Standing:
    """Recent refusals of a replica."""

    usable_at_s: float = 0.0
    num_refusals: int = 0
    num_overloads: int = 0


class UserChoice:
    """What one user prefers among endpoints whose distances and health all users of the process share."""

    def __init__(
        self,
        distances: Distances,
        availability: Availability,
        user: str,
        tenant: str = "",
        settings: RoutingSettings | None = None,
        order: EndpointOrder = rendezvous_order,
    ) -> None:
        """Order the endpoints of `distances` for a user; `order` gives the order within a tier."""
        self._distances = distances
        self._availability = availability
        self._settings = settings or RoutingSettings()
        self._user, self._tenant = user, tenant
        self._standings = {endpoint: _Standing() for endpoint in distances.endpoints}
        self.reorder(order)

    def reorder(self, order: EndpointOrder) -> None:
        """Order the endpoints by another function from now on. Those that it leaves out are not used."""
        self._hashed = tuple(order(self._distances.endpoints, self._user, self._tenant))
        self._version = -1
        self._order: tuple[Endpoint, ...] = ()

    @property
    def order(self) -> tuple[Endpoint, ...]:
        """All endpoints in the order of preference."""
        if self._version != self._distances.version:
            self._order = tuple(each for tier in self._distances.tiers for each in self._hashed if each in tier)
            self._version = self._distances.version
        return self._order

    def usable_at_s(self, endpoint: Endpoint, now_s: float) -> float:
        """Return from when on the user uses an endpoint; infinity if it has failed."""
        shared_s = self._availability.usable_at_s(endpoint, f"{self._tenant}{_SEPARATOR}{self._user}", now_s)
        return max(shared_s, self._standings[endpoint].usable_at_s)

    def candidates(self, now_s: float) -> list[Endpoint]:
        """Return all endpoints in the order in which to try them.

        The usable ones come first, in the order of preference; then the others, those first that are usable soonest.
        """
        return sorted(self.order, key=lambda each: max(now_s, self.usable_at_s(each, now_s)))

    def choose(self, now_s: float) -> Endpoint:
        """Return the first of the candidates."""
        for endpoint in self.order:
            if self.usable_at_s(endpoint, now_s) <= now_s:
                return endpoint
        return self.candidates(now_s)[0]

    def refused(self, endpoint: Endpoint, now_s: float, retry_after_s: float = 0.0) -> None:
        """Note that a replica refused a call or a session, or could not be reached: pass it over for a while."""
        standing, settings = self._standings[endpoint], self._settings
        if standing.usable_at_s > now_s:
            return  # one failure ends many calls at once
        doubled_s = settings.pass_over_min_s * 2.0 ** min(standing.num_refusals, 32)
        standing.usable_at_s = now_s + min(settings.pass_over_max_s, max(doubled_s, retry_after_s))
        standing.num_refusals += 1
        standing.num_overloads = 0

    def overloaded(self, endpoint: Endpoint, now_s: float, retry_after_s: float = 0.0) -> None:
        """Note that a replica shed a request as OVERLOAD: pass it over if it does so repeatedly."""
        standing = self._standings[endpoint]
        standing.num_overloads += 1
        if standing.num_overloads >= self._settings.overloads:
            self.refused(endpoint, now_s, retry_after_s)

    def answered(self, endpoint: Endpoint) -> None:
        """Note that a replica answered a request: its next refusal counts as the first."""
        standing = self._standings[endpoint]
        standing.num_refusals = standing.num_overloads = 0


def _hash_of(*names: str) -> int:
    """Return 64 bits that follow from names alone, the same in every process and on every machine."""
    key = _SEPARATOR.join(names).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=_HASH_BYTES).digest(), "big")
