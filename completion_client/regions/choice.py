"""The order in which one user tries the endpoints. Pure: the caller gives the time.

The order of preference is by distance, tier after tier, and within a tier by the user's hash, so that a user's
documents stay in the prefix cache of one server of the nearest region. Endpoints that have failed, that the user has
not returned to yet, or that refused the user of late come after the others.
"""

from collections.abc import Callable, Iterable, Sequence

from completion_client.endpoint import Endpoint
from completion_client.regions.availability import Availability
from completion_client.regions.distances import Distances
from completion_client.routing import Preference, RoutingSettings, rendezvous_order

Order = Callable[[Iterable[Endpoint], str, str], Sequence[Endpoint]]
"""Returns the replicas of a user and a tenant in the order of preference."""


class UserChoice:
    """What one user prefers among endpoints whose distances and health all users of the process share."""

    def __init__(
        self,
        distances: Distances,
        availability: Availability,
        user: str,
        tenant: str = "",
        settings: RoutingSettings | None = None,
        order: Order = rendezvous_order,
    ) -> None:
        """Order the endpoints of `distances` for a user; `order` gives the order within a tier."""
        self._distances = distances
        self._availability = availability
        self._key = f"{tenant}\x00{user}"
        self._hashed = tuple(order(distances.endpoints, user, tenant))
        self.standings = Preference(self._hashed, settings or RoutingSettings())
        """Recent refusals of the endpoints to this user."""
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
        return max(shared_s, self.standings.usable_at_s(endpoint))

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
