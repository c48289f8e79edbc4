"""One user's view of the endpoints: which to try now, on which connection, and what their answers mean."""

from collections.abc import Callable
from dataclasses import dataclass

from completion.v1 import completion_pb2 as pb
from completion_client.choice import UserChoice
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
from completion_client.silence import SilenceError
from completion_client.tokens import Token

_ANSWERED = (pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH)
_ANSWER_TRIPS = 3
"""Round trips that a silent server has. Half of the time is for the answer to a health check: 1.5 round trips."""
_CONNECT_TRIPS = 6
"""The same for a TCP and TLS handshake, up to three round trips, before it."""
_BUSY_S = 0.05
"""Besides, for a server and a client that are busy."""
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Move:
    """A session that goes on at another endpoint."""

    before: Endpoint
    after: Endpoint
    why: str
    """Why the former endpoint is not usable; "" if the new one is merely preferred."""


OnMove = Callable[[Move], None]


class Replicas:
    """The endpoints of one user and the connections to them."""

    def __init__(
        self,
        regions: Regions,
        choice: UserChoice,
        number: int | None,
        connect_timeout_s: float,
        token: Token | None = None,
    ) -> None:
        """Lease connections of a number, each of which is connected within `connect_timeout_s`.

        The user presents `token`; that of the endpoint if it is None.
        """
        self.regions = regions
        self.choice = choice
        self.connect_timeout_s = connect_timeout_s
        self._leased: int | None = regions.connections.lease(number)
        self._token = token
        self._no_token = Token()
        """Remembers, for this user, that a server wants one."""
        self._unreadable: dict[Endpoint, str] = {}
        """Which PEM file of an endpoint can't be read."""

    @property
    def _number(self) -> int:
        if self._leased is None:
            msg = "the client is closed"
            raise ConnectionLostError(msg)
        return self._leased

    def release(self) -> None:
        """Use the connections no longer; ignored if that was done."""
        if self._leased is not None:
            self.regions.connections.release(self._leased)
            self._leased = None

    @property
    def has_choice(self) -> bool:
        """Whether there is more than one endpoint."""
        return len(self.choice.order) > 1

    async def ready(self, left_s: float | None = None) -> None:
        """Wait until the nearest endpoint is known, see `Regions.ready`, if there is a choice."""
        if self.has_choice:
            await self.regions.ready(left_s)

    def token(self, endpoint: Endpoint) -> Token:
        """Return what the user presents at an endpoint."""
        return self._token or endpoint.token or self._no_token

    def candidates(self) -> list[Endpoint]:
        """Return the endpoints in the order in which to try them now."""
        return self.choice.candidates(self.regions.now())

    def best(self) -> Endpoint:
        """Return the endpoint to which a request goes now."""
        return self.choice.choose(self.regions.now())

    def is_usable(self, endpoint: Endpoint) -> bool:
        """Return whether nothing speaks against an endpoint."""
        now_s = self.regions.now()
        return self.choice.usable_at_s(endpoint, now_s) <= now_s

    def connection(self, endpoint: Endpoint) -> Connection:
        """Return the user's connection to an endpoint, connected or not.

        Raises:
            ConnectionLostError: a PEM file of the endpoint can't be read: it is passed over then. Or the client is
                closed.

        """
        self._unreadable.pop(endpoint, None)
        try:
            return self.regions.connections.get(endpoint, self._number)
        except ConnectionLostError as error:
            self._unreadable[endpoint] = str(error.__cause__ or error)
            self.choice.refused(endpoint, self.regions.now())
            raise

    async def connected(self, endpoint: Endpoint, within_s: float | None = None) -> Connection:
        """Return the user's connection to an endpoint when it is connected, also within `within_s` if that is given.

        Raises:
            ConnectionLostError: see `Regions.connected`, or the client is closed. The endpoint is passed over then.

        """
        timeout_s = self.connect_timeout_s if within_s is None else min(within_s, self.connect_timeout_s)
        try:
            return await self.regions.connected(endpoint, self._number, timeout_s)
        except ConnectionLostError:
            self.choice.refused(endpoint, self.regions.now())
            raise

    async def first_connected(self) -> Endpoint:
        """Connect to the first endpoint in the order that can be reached, and return it.

        Raises:
            ConnectionLostError: none can.

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

    def note_error(self, connection: Connection, error: ServiceError) -> bool:
        """Note the failure of a call, a stream or a request; return whether another endpoint may do better."""
        retry_after_s = (error.retry_after_ms or 0) / _MS_PER_S
        if isinstance(error, ResourceExhaustedError):
            return self._note_exhausted(connection.endpoint, error.reason, retry_after_s)
        if isinstance(error, UnavailableError) and not isinstance(error, SilenceError):  # that was noted as it began
            self._note_lost(connection, error.message, retry_after_s)
        return isinstance(error, UnavailableError)

    def note_silence(self, connection: Connection) -> None:
        """Note that an endpoint sends nothing to this user; a health check decides about it for the others."""
        self.choice.refused(connection.endpoint, self.regions.now())

    def note_end(self, connection: Connection, end: pb.End, total_s: float) -> bool:
        """Note how a request ended after `total_s`; return whether another endpoint may do better."""
        retry_after_s = end.retry_after_ms / _MS_PER_S
        if end.timings.total_ms > 0:
            self.regions.measured(connection, total_s - end.timings.total_ms / _MS_PER_S)
        if end.shed_reason == pb.SHED_REASON_DRAINING:
            self._note_lost(connection, "it drains", retry_after_s)
            return True
        if end.shed_reason == pb.SHED_REASON_OVERLOAD:
            return self._note_exhausted(connection.endpoint, "OVERLOAD", retry_after_s)
        if end.finish_reason in _ANSWERED:
            self.choice.answered(connection.endpoint)
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
        if connection.is_ready:
            return max(limit_s, _BUSY_S + _ANSWER_TRIPS * (round_trip_s or 0.0))
        if round_trip_s is None:
            return self.regions.settings.silence_max_s
        return max(limit_s, _BUSY_S + _CONNECT_TRIPS * round_trip_s)

    def why_not(self, endpoint: Endpoint) -> str:
        """Return why an endpoint is not usable; "" if nothing is known against it."""
        return self.regions.availability.why(endpoint) or self._unreadable.get(endpoint, "")

    def why_none(self) -> str:
        """Return why no endpoint can be used."""
        reasons = {each.address: self.token(each).problem or self.why_not(each) or "lost" for each in self.candidates()}
        return "not connected: " + "; ".join(f"{address}: {why}" for address, why in reasons.items())

    def _note_exhausted(self, endpoint: Endpoint, reason: str, retry_after_s: float) -> bool:
        """Note a limit; return whether it is one of the server, not one of the user."""
        if reason == "OVERLOAD":
            self.choice.overloaded(endpoint, self.regions.now(), retry_after_s)
        elif reason == "SERVER_FULL":
            self.choice.refused(endpoint, self.regions.now(), retry_after_s)
        return reason == "SERVER_FULL"

    def _note_lost(self, connection: Connection, why: str, retry_after_s: float) -> None:
        self.choice.refused(connection.endpoint, self.regions.now(), retry_after_s)
        self.regions.lost(connection, why)
