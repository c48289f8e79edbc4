"""The order in which one user tries the endpoints. Pure: no connections, and the caller gives the time.

The order of preference is by distance, tier after tier, and within a tier by the user's hash, so that a user's
documents stay in the prefix cache of one server of the nearest region. Endpoints that have failed, that the user has
not returned to yet, or that refused the user of late come after the others.

Rendezvous (highest random weight) hashing gives each user an order of all replicas, the same in every process and on
every machine. If one of n replicas goes, 1/n of the users move, each to the second of its own order; if one is added,
the users that move all go to it. Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
Transactions on Networking 6 (1998).

The load is bounded by what the replicas say: one that is full, down or overloaded is passed over for a while, in favour
of the next in the user's order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from completion_client.endpoint import Endpoint, EndpointError
from completion_client.regions.availability import Availability, hash_of
from completion_client.regions.distances import Distances

EndpointOrder = Callable[[Iterable[Endpoint], str, str], Sequence[Endpoint]]
"""Returns the replicas of a user and a tenant in the order of preference."""


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """For how long a replica is passed over. Times in seconds."""

    pass_over_min_s: float = 1.0
    """After a first refusal, unless the server asks for longer. Each further one doubles it."""
    pass_over_max_s: float = 30.0
    """The longest time, also if the server asks for longer."""
    overloads: int = 3
    """Requests shed as OVERLOAD, without an answer between them, after which a replica counts as refusing."""


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Return the endpoints of "a:1,b:2,c:3", without TLS.

    Raises:
        EndpointError: there is none, an address is empty, or one is there twice.

    """
    addresses = [each.strip() for each in text.split(",")]
    if not all(addresses):
        raise EndpointError("address", f"expected ADDRESS[,ADDRESS...], got {text!r}")
    for address in addresses:
        if addresses.count(address) > 1:
            raise EndpointError("address", f"{address} is there twice")
    return tuple(map(Endpoint, addresses))


def rendezvous_order(endpoints: Iterable[Endpoint], user: str, tenant: str = "") -> tuple[Endpoint, ...]:
    """Return a user's order of preference. Endpoints are told apart by their addresses; their order does not matter."""
    return tuple(sorted(endpoints, key=lambda each: (-hash_of(each.address, tenant, user), each.address)))


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
        self._key = f"{tenant}\x00{user}"
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
        shared_s = self._availability.usable_at_s(endpoint, self._key, now_s)
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
