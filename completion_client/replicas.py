"""One user's view of the endpoints: which to try now, on which connection, and what their answers mean.

The order of preference is by distance, tier after tier, and within a tier by the user's hash, so that a user's
documents stay in the prefix cache of one server of the nearest region. Endpoints that have failed, that the user has
not returned to yet, or that refused the user of late come after the others.

Rendezvous (highest random weight) hashing gives each user an order of all replicas, the same in every process and on
every machine. If one of n replicas goes, 1/n of the users move, each to the second of its own order; if one is added,
the users that move all go to it. Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
Transactions on Networking 6 (1998).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from completion.v1 import completion_pb2 as pb
from completion_client.connections import Connection
from completion_client.endpoint import Endpoint
from completion_client.errors import (
    ConnectionLostError,
    ResourceExhaustedError,
    ServiceError,
    UnavailableError,
    error_of_end,
)
from completion_client.regions import Regions
from completion_client.tokens import Token
from completion_client.watcher import hash_of

_ANSWERED = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
_ANSWER_TRIPS, _CONNECT_TRIPS = 3, 6
"""Round trips that a silent server has. Half of the time is for the answer to a health check: 1.5 round trips. A TCP
and TLS handshake before it takes up to three."""
_BUSY_S = 0.05
"""Besides, for a server and a client that are busy."""
_MS_PER_S = 1000

EndpointOrder = Callable[[Iterable[Endpoint], str, str], Sequence[Endpoint]]
"""Returns the replicas of a user and a tenant in the order of preference."""


def rendezvous_order(endpoints: Iterable[Endpoint], user: str, tenant: str = "") -> tuple[Endpoint, ...]:
    """Return a user's order of preference. Endpoints are told apart by their addresses; their order does not matter."""
    return tuple(sorted(endpoints, key=lambda each: (-hash_of(each.address, tenant, user), each.address)))


@dataclass(frozen=True, slots=True)
class Move:
    """A session that goes on at another endpoint."""

    before: Endpoint
    after: Endpoint
    why: str
    """Why the former endpoint is not usable; "" if the new one is merely preferred."""


OnMove = Callable[[Move], None]


@dataclass(slots=True)
class _Standing:
    """Recent refusals of a replica."""

    usable_at_s: float = 0.0
    num_refusals: int = 0
    num_overloads: int = 0
    why: str = ""


class Replicas:
    """The endpoints of one user and the connections to them."""

    def __init__(
        self,
        regions: Regions,
        user: str,
        tenant: str = "",
        *,
        order: EndpointOrder = rendezvous_order,
        number: int | None = None,
        connect_timeout_s: float = 2.0,
        token: Token | None = None,
    ) -> None:
        """Lease connections of a number, each of which is connected within `connect_timeout_s`.

        `order` gives the order within a tier. The user presents `token`; that of the endpoint if it is None.
        """
        self.regions = regions
        self.connect_timeout_s = connect_timeout_s
        self._user, self._tenant = user, tenant
        self._standings = {each: _Standing() for each in regions.endpoints}
        self._leased: int | None = regions.connections.lease(number)
        self._token = token
        self._no_token = Token()
        """Remembers, for this user, that a server wants one."""
        self.reorder(order)

    def reorder(self, order: EndpointOrder) -> None:
        """Order the endpoints by another function from now on. Those that it leaves out are not used."""
        self._hashed = tuple(order(self.regions.endpoints, self._user, self._tenant))
        self._tiers: object = None

    @property
    def order(self) -> tuple[Endpoint, ...]:
        """All endpoints in the order of preference."""
        tiers = self.regions.distances.tiers
        if self._tiers is not tiers:
            self._order = tuple(each for tier in tiers for each in self._hashed if each in tier)
            self._tiers = tiers
        return self._order

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one endpoint."""
        return len(self._hashed) > 1

    def usable_at_s(self, endpoint: Endpoint) -> float:
        """Return from when on the user uses an endpoint; infinity if it has failed."""
        shared_s = self.regions.watchers[endpoint].usable_at_s(f"{self._tenant}\x00{self._user}")
        return max(shared_s, self._standings[endpoint].usable_at_s)

    def is_usable(self, endpoint: Endpoint) -> bool:
        """Return whether nothing speaks against an endpoint."""
        return self.usable_at_s(endpoint) <= self.regions.now()

    def candidates(self) -> list[Endpoint]:
        """Return all endpoints in the order in which to try them.

        The usable ones come first, in the order of preference; then the others, those first that are usable soonest.
        """
        now_s = self.regions.now()
        return sorted(self.order, key=lambda each: max(now_s, self.usable_at_s(each)))

    def best(self) -> Endpoint:
        """Return the endpoint to which a request goes now."""
        return next(filter(self.is_usable, self.order), None) or self.candidates()[0]

    def pass_over(self, endpoint: Endpoint, why: str, retry_after_s: float = 0.0) -> None:
        """Note that a replica refused a call or a session, or could not be reached: pass it over for a while."""
        standing, settings, now_s = self._standings[endpoint], self.regions.settings, self.regions.now()
        standing.why = why
        if standing.usable_at_s > now_s:
            return  # one failure ends many calls at once
        doubled_s = settings.pass_over_min_s * 2.0 ** min(standing.num_refusals, 32)
        standing.usable_at_s = now_s + min(settings.pass_over_max_s, max(doubled_s, retry_after_s))
        standing.num_refusals += 1
        standing.num_overloads = 0

    def note_error(self, connection: Connection, error: ServiceError) -> bool:
        """Note the failure of a call, a stream or a request; return whether another endpoint may do better."""
        retry_after_s = (error.retry_after_ms or 0) / _MS_PER_S
        if isinstance(error, ResourceExhaustedError):
            return self._note_exhausted(connection.endpoint, error.reason, retry_after_s)
        if isinstance(error, UnavailableError):
            self.pass_over(connection.endpoint, error.message, retry_after_s)
            self.regions.lost(connection)
        return isinstance(error, UnavailableError)

    def note_end(self, connection: Connection, end: pb.End, total_s: float) -> bool:
        """Note how a request ended after `total_s`; return whether another endpoint may do better."""
        endpoint, retry_after_s = connection.endpoint, end.retry_after_ms / _MS_PER_S
        if end.timings.total_ms > 0:
            self.regions.watchers[endpoint].measured(total_s - end.timings.total_ms / _MS_PER_S)
        if end.shed_reason == pb.SHED_REASON_DRAINING:
            self.pass_over(endpoint, "it drains", retry_after_s)
            self.regions.lost(connection)
            return True
        if end.shed_reason == pb.SHED_REASON_OVERLOAD:
            return self._note_exhausted(endpoint, "OVERLOAD", retry_after_s)
        if end.finish_reason in _ANSWERED:  # the next refusal counts as the first
            standing = self._standings[endpoint]
            standing.num_refusals = standing.num_overloads = 0
        error = error_of_end(end)
        return error is not None and self.note_error(connection, error)

    def silence_s(self, connection: Connection, left_s: float | None) -> float | None:
        """Return how long a server may send nothing to a request that has `left_s` left.

        At least as long as its distance takes. None if it may for ever: there is no other server.
        """
        if not self.has_choice:
            return None
        limit_s = self.regions.settings.silence_s(left_s)
        round_trip_s = self.regions.distances.round_trip_s(connection.endpoint)
        if round_trip_s is None and not connection.is_ready:
            return self.regions.settings.silence_max_s
        num_trips = _ANSWER_TRIPS if connection.is_ready else _CONNECT_TRIPS
        return max(limit_s, _BUSY_S + num_trips * (round_trip_s or 0.0))

    def token(self, endpoint: Endpoint) -> Token:
        """Return what the user presents at an endpoint."""
        return self._token or endpoint.token or self._no_token

    def why_not(self, endpoint: Endpoint) -> str:
        """Return why an endpoint is not usable; "" if nothing is known against it."""
        if self.is_usable(endpoint):
            return ""
        return self.regions.watchers[endpoint].why or self._standings[endpoint].why

    def why_none(self) -> str:
        """Return why no endpoint can be used."""
        reasons = {each.address: self.token(each).problem or self.why_not(each) or "lost" for each in self.candidates()}
        return "not connected: " + "; ".join(f"{address}: {why}" for address, why in reasons.items())

    async def ready(self, left_s: float | None = None) -> None:
        """Wait until the nearest endpoint is known, see `Regions.ready`, if there is a choice."""
        if self.has_choice:
            await self.regions.ready(left_s)

    def connection(self, endpoint: Endpoint) -> Connection:
        """Return the user's connection to an endpoint, connected or not.

        Raises ConnectionLostError if a PEM file of the endpoint can't be read, which is passed over then, or the client
        is closed.
        """
        try:
            return self.regions.connections.get(endpoint, self._number)
        except ConnectionLostError as error:
            self.pass_over(endpoint, str(error.__cause__ or error))
            raise

    async def connected(self, endpoint: Endpoint, within_s: float | None = None) -> Connection:
        """Return the user's connection to an endpoint when it is connected, also within `within_s` if that is given.

        Raises ConnectionLostError as `Regions.connected` does; the endpoint is passed over then.
        """
        timeout_s = self.connect_timeout_s if within_s is None else min(within_s, self.connect_timeout_s)
        try:
            return await self.regions.connected(endpoint, self._number, timeout_s)
        except ConnectionLostError as error:
            self.pass_over(endpoint, error.message)
            raise

    async def first_connected(self) -> Endpoint:
        """Connect to the first endpoint in the order that can be reached, and return it.

        Raises ConnectionLostError if none can.
        """
        failures: list[str] = []
        for endpoint in self.candidates():
            try:
                await self.connected(endpoint)
            except ConnectionLostError as error:
                failures.append(error.message)
            else:
                return endpoint
        raise ConnectionLostError("; ".join(failures))

    def disconnect(self) -> None:
        """Use new connections for new calls, unless other users share the present ones."""
        self.regions.connections.renew(self._number)

    def release(self) -> None:
        """Use the connections no longer; ignored if that was done."""
        if self._leased is not None:
            self.regions.connections.release(self._leased)
            self._leased = None

    @property
    def _number(self) -> int:
        if self._leased is None:
            msg = "the client is closed"
            raise ConnectionLostError(msg)
        return self._leased

    def _note_exhausted(self, endpoint: Endpoint, reason: str, retry_after_s: float) -> bool:
        """Note a limit; return whether it is one of the server, not one of the user."""
        standing = self._standings[endpoint]
        standing.num_overloads += reason == "OVERLOAD"
        if reason == "SERVER_FULL" or standing.num_overloads >= self.regions.settings.overloads:
            self.pass_over(endpoint, reason, retry_after_s)
        return reason == "SERVER_FULL"
