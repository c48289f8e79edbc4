"""The connections of a process to its endpoints, the users that share them, and their new certificates."""

import asyncio
import itertools
import logging
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from completion_client.endpoint import ChannelOptions, Endpoint, EndpointError
from completion_client.errors import ConnectionLostError
from completion_client.health import CheckResult, check_health, is_done_within
from completion_client.regions.silence import SilenceRecord

_log = logging.getLogger(__name__)

_OPTIONS = (
    # Without this gRPC shares one connection between all channels to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # The session's back-off decides when to try again; gRPC's own must not delay that.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class Connection:
    """A channel to an endpoint, which several users share."""

    def __init__(self, endpoint: Endpoint, channel: grpc.aio.Channel) -> None:
        """Hold a channel, connected or not."""
        self.endpoint = endpoint
        self._channel: grpc.aio.Channel | None = channel
        self.heard_at_s = -math.inf
        """The loop's time at which the server sent something last; minus infinity if it never did."""
        self.silence = SilenceRecord()
        """The requests on it to which nothing came."""
        self.is_silent = False
        """Whether it was given up because of them."""
        self._check: asyncio.Task[CheckResult] | None = None
        self._checked_at_s = -math.inf
        self._num_waiting = 0

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel for new calls.

        Raises:
            ConnectionLostError: the connection was dropped.

        """
        if self._channel is None:
            msg = f"the connection to {self.endpoint.address} was given up"
            raise ConnectionLostError(msg)
        return self._channel

    @property
    def is_ready(self) -> bool:
        """Whether it is connected."""
        return self._channel is not None and self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def closes_within(self, timeout_s: float) -> bool:
        """Return whether it is no longer connected, at the latest after `timeout_s`."""
        if self._channel is None:
            return True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        return not self.is_ready

    async def check(self, timeout_s: float) -> CheckResult:
        """Return the server's health, if it answers within `timeout_s`.

        Callers at the same time share one health check, each with its own limit. A check that nobody waits for any more
        goes on: its answer still counts as heard.
        """
        if self._channel is None:
            return CheckResult(None, "the connection was given up")
        check = self._shared_check(self._channel, timeout_s)
        self._num_waiting += 1
        try:
            is_done = await is_done_within(check, timeout_s)
        finally:
            self._num_waiting -= 1
        if not is_done:
            return CheckResult(None, f"no answer to a health check within {timeout_s * 1000:.0f} ms")
        return CheckResult(None, "the connection was given up") if check.cancelled() else check.result()

    def _shared_check(self, channel: grpc.aio.Channel, timeout_s: float) -> asyncio.Task[CheckResult]:
        """Return the check under way, or a new one if that was abandoned and is too old for this caller."""
        now_s, check = asyncio.get_running_loop().time(), self._check
        if check is not None and not self._num_waiting and now_s - self._checked_at_s > timeout_s:
            check.cancel()
            check = None
        if check is None or check.done():
            check = self._check = asyncio.create_task(self._ask(channel))
            self._checked_at_s = now_s
        return check

    async def _ask(self, channel: grpc.aio.Channel) -> CheckResult:
        result = await check_health(channel)
        if result.round_trip_s is not None:
            self.heard_at_s = asyncio.get_running_loop().time()
        return result

    def drop_nowait(self) -> None:
        """Take no new call, and end a check that waits for an answer. Calls go on; the last one closes the channel."""
        self._channel = None  # gRPC closes a channel without a reference once its calls have ended
        if self._check is not None:
            self._check.cancel()


class Connections:
    """Opens connections when they are first needed. One that is dropped here lives until its calls have ended."""

    def __init__(self, options: ChannelOptions = ()) -> None:
        """Open none yet; `options` are gRPC's channel options besides those of this library."""
        self._options = (*_OPTIONS, *options)
        self._connections: dict[tuple[Endpoint, int], Connection] = {}
        self._heard_at_s: dict[Endpoint, float] = {}
        """When an endpoint sent something last on a connection that was dropped since."""

    def get(self, endpoint: Endpoint, number: int = 0) -> Connection:
        """Return a connection to an endpoint, connected or not.

        Raises:
            EndpointError: a PEM file of the endpoint can't be read.

        """
        key = endpoint, number
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = self.open(endpoint)
        return connection

    def open(self, endpoint: Endpoint) -> Connection:
        """Return a connection of its own, which no user has.

        Raises:
            EndpointError: a PEM file of the endpoint can't be read.

        """
        return Connection(endpoint, endpoint.open_aio_channel(self._options))

    def holds(self, connection: Connection) -> bool:
        """Return whether new calls still use a connection."""
        return connection in self._connections.values()

    def heard_at_s(self, endpoint: Endpoint) -> float:
        """Return when an endpoint sent something last, on any connection; minus infinity if it never did."""
        heard_s = (each.heard_at_s for each in self._connections.values() if each.endpoint == endpoint)
        return max((self._heard_at_s.get(endpoint, -math.inf), *heard_s))

    def drop(self, connection: Connection) -> None:
        """Use a connection for no new call."""
        self._note_dropped(connection)
        for key in [key for key, each in self._connections.items() if each is connection]:
            del self._connections[key]

    def drop_lost(self, connection: Connection) -> None:
        """Drop a connection, and all others to its endpoint that are not connected."""
        endpoint = connection.endpoint
        for each in [each for each in self._connections.values() if each.endpoint == endpoint]:
            if each is connection or not each.is_ready:
                self.drop(each)

    def drop_number(self, number: int) -> None:
        """Use the connections of a number, to all endpoints, for no new call."""
        for connection in [each for (_, used), each in self._connections.items() if used == number]:
            self.drop(connection)

    def replace(self, endpoint: Endpoint, connection: Connection) -> None:
        """Use one new connection in place of all to an endpoint; others are opened when they are needed."""
        for key in [key for key in self._connections if key[0] == endpoint]:
            self._note_dropped(self._connections.pop(key))
        self._connections[endpoint, 0] = connection

    def close(self) -> None:
        """Drop all."""
        for each in self._connections.values():
            each.drop_nowait()
        self._connections.clear()

    def _note_dropped(self, connection: Connection) -> None:
        connection.drop_nowait()
        before_s = self._heard_at_s.get(connection.endpoint, -math.inf)
        self._heard_at_s[connection.endpoint] = max(before_s, connection.heard_at_s)


class CertificateWatch:
    """Replaces the connections to endpoints whose TLS files have changed.

    A new connection is opened and has answered a health check before the old ones are drained: they get no new call
    and close with their last one. Files that can't be used, such as a key of another certificate, change nothing.
    """

    def __init__(self, endpoints: Iterable[Endpoint], connections: Connections) -> None:
        """Take the present files for those of the open connections."""
        self._connections = connections
        self._seen = {each: _states(each) for each in endpoints if _files(each)}

    @property
    def is_needed(self) -> bool:
        """Whether an endpoint has TLS files."""
        return bool(self._seen)

    async def look(self, timeout_s: float) -> list[Endpoint]:
        """Replace the connections to each endpoint with changed files; return these endpoints."""
        replaced = []
        for endpoint, seen in self._seen.items():
            now = _states(endpoint)
            if now is not None and now != seen and await self._replace(endpoint, timeout_s):
                self._seen[endpoint] = now
                replaced.append(endpoint)
        return replaced

    async def _replace(self, endpoint: Endpoint, timeout_s: float) -> bool:
        try:
            connection = self._connections.open(endpoint)
        except EndpointError as error:
            _log.warning("%s: new TLS files are not used yet: %s", endpoint.address, error)
            return False
        result = await connection.check(timeout_s)
        if result.round_trip_s is None:
            connection.drop_nowait()
            _log.warning("%s: no connection with the new TLS files yet: %s", endpoint.address, result.problem)
            return False
        self._connections.replace(endpoint, connection)
        _log.info("%s: connections use the new TLS files", endpoint.address)
        return True


def _files(endpoint: Endpoint) -> list[Path]:
    return [each for each in (endpoint.ca, endpoint.certificate, endpoint.key) if each is not None]


def _states(endpoint: Endpoint) -> list[tuple[int, int, int]] | None:
    """Return what changes when a TLS file of an endpoint does; None while one is away."""
    try:
        return [(found.st_mtime_ns, found.st_size, found.st_ino) for found in map(Path.stat, _files(endpoint))]
    except OSError:
        return None


@dataclass(slots=True)
class ConnectionNumbers:
    """Counts the users of each connection number."""

    users_per_connection: int
    """Number of users that share a connection number, unless more ask for that number."""
    _num_users: dict[int, int] = field(default_factory=dict)
    """Users of each number that has any."""

    @property
    def in_use(self) -> list[int]:
        """The numbers with users, in ascending order."""
        return sorted(self._num_users)

    def take(self, number: int | None = None) -> int:
        """Add a user to a number, the lowest with room if none is given; return the number."""
        if number is None:
            number = next(each for each in itertools.count() if self._has_room(each))
        self._num_users[number] = self._num_users.get(number, 0) + 1
        return number

    def give_back(self, number: int) -> bool:
        """Remove a user from a number; return whether it was the last one."""
        self._num_users[number] -= 1
        if self._num_users[number]:
            return False
        del self._num_users[number]
        return True

    def num_users(self, number: int) -> int:
        """Return the number of users of a connection number."""
        return self._num_users.get(number, 0)

    def _has_room(self, number: int) -> bool:
        return self.num_users(number) < self.users_per_connection
