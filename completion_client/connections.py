"""The connections of a process to its endpoints, and the users that share them."""

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc

from completion_client.endpoint import ChannelOptions, Endpoint, EndpointError
from completion_client.errors import ConnectionLostError
from completion_client.health import CheckResult, check_health, within

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
        self.is_silent = False
        """Whether it was given up because nothing came on it, not even the answer to a health check."""

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel for new calls. Raises ConnectionLostError if the connection was dropped."""
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
        if self._channel is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        return not self.is_ready

    async def check(self, timeout_s: float) -> CheckResult:
        """Return the server's health, if it answers within `timeout_s`."""
        if self._channel is None:
            return CheckResult(None, "the connection was given up")
        result = await within(timeout_s, check_health(self._channel))
        if result is None:
            return CheckResult(None, f"no answer to a health check within {timeout_s * 1000:.0f} ms")
        if result.round_trip_s is not None:
            self.heard_at_s = asyncio.get_running_loop().time()
        return result

    def drop_nowait(self) -> None:
        """Take no new call. Calls go on; the last one closes the channel."""
        self._channel = None  # gRPC closes a channel without a reference once its calls have ended


class Connections:
    """Opens connections when they are first needed. One that is dropped here lives until its calls have ended.

    Users share the connections of a number: 0 is also for health checks.
    """

    def __init__(self, options: ChannelOptions = (), users_per_connection: int = 1) -> None:
        """Open none yet; `options` are gRPC's channel options besides those of this library."""
        self._options = (*_OPTIONS, *options)
        self._users_per_connection = users_per_connection
        self._users: Counter[int] = Counter()
        """Users of each number that has any."""
        self._connections: dict[tuple[Endpoint, int], Connection] = {}

    def lease(self, number: int | None = None) -> int:
        """Add a user to a number, to the lowest with room if none is given; return the number."""
        if number is None:
            number = next(each for each in itertools.count() if self._users[each] < self._users_per_connection)
        self._users[number] += 1
        return number

    def release(self, number: int) -> None:
        """Remove a user from a number. The last one drops its connections, but not those of 0."""
        self._users[number] -= 1
        if self._users[number] <= 0:
            del self._users[number]
            if number:
                self._drop_where(lambda _endpoint, used: used == number)

    def renew(self, number: int) -> None:
        """Use new connections in place of those of a number, unless several users share it."""
        if self._users[number] == 1:
            self._drop_where(lambda _endpoint, used: used == number)

    def get(self, endpoint: Endpoint, number: int = 0) -> Connection:
        """Return a connection, connected or not. Raises ConnectionLostError if a PEM file can't be read."""
        key = endpoint, number
        if key not in self._connections:
            self._connections[key] = self._open(endpoint)
        return self._connections[key]

    def holds(self, connection: Connection) -> bool:
        """Return whether new calls still use a connection."""
        return connection in self._connections.values()

    def drop(self, connection: Connection) -> None:
        """Use a connection for no new call."""
        self._drop_where(lambda *key: self._connections[key] is connection)
        connection.drop_nowait()

    def drop_all(self, endpoint: Endpoint) -> None:
        """Use none of the connections to an endpoint for a new call."""
        self._drop_where(lambda each, _number: each == endpoint)

    def close(self) -> None:
        """Drop all."""
        self._drop_where(lambda _endpoint, _number: True)

    async def replace(self, endpoint: Endpoint, timeout_s: float) -> bool:
        """Use a new connection, with new TLS files, in place of all to an endpoint; return whether it works.

        It has answered a health check before the old ones are drained: they get no new call and close with their last
        one. Files that can't be used, such as a key of another certificate, change nothing.
        """
        try:
            connection = self._open(endpoint)
        except ConnectionLostError as error:
            _log.warning("new TLS files are not used yet: %s", error)
            return False
        result = await connection.check(timeout_s)
        if result.round_trip_s is None:
            _log.warning("%s: no connection with the new TLS files yet: %s", endpoint.address, result.problem)
            return False
        self.drop_all(endpoint)
        self._connections[endpoint, 0] = connection
        _log.info("%s: connections use the new TLS files", endpoint.address)
        return True

    def _open(self, endpoint: Endpoint) -> Connection:
        try:
            return Connection(endpoint, endpoint.open_aio_channel(self._options))
        except EndpointError as error:
            msg = f"no connection to {endpoint.address}: {error}"
            raise ConnectionLostError(msg) from error

    def _drop_where(self, is_dropped: Callable[[Endpoint, int], bool]) -> None:
        for key in [key for key in self._connections if is_dropped(*key)]:
            self._connections.pop(key).drop_nowait()


def tls_file_states(endpoint: Endpoint) -> list[tuple[int, int, int]]:
    """Return what changes when a TLS file of an endpoint does; nothing while one is away."""
    files = filter(None, (endpoint.ca, endpoint.certificate, endpoint.key))
    try:
        return [(found.st_mtime_ns, found.st_size, found.st_ino) for found in map(Path.stat, files)]
    except OSError:
        return []
