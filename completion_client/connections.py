"""The connections of a process to its endpoints, the users that share them, and their new certificates."""

import asyncio
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import grpc

from completion_client.endpoint import ChannelOptions, Endpoint, EndpointError
from completion_client.errors import ConnectionLostError
from completion_client.health import CheckResult, check_health, is_done_within
from completion_client.silence import SilenceRecord

_log = logging.getLogger(__name__)

_OPTIONS = (
    # Without this gRPC shares one connection between all channels to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # The session's back-off decides when to try again; gRPC's own must not delay that.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_GIVEN_UP = CheckResult(None, "the connection was given up")


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

    @property
    def is_checking(self) -> bool:
        """Whether an answer to a health check is awaited."""
        return self._check is not None and not self._check.done()

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

        Callers at the same time share one health check, each with its own limit. It goes on when nobody waits for it
        any more: its answer still counts as heard.
        """
        if self._channel is None:
            return _GIVEN_UP
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._ask(self._channel))
        check = self._check
        if not await is_done_within(check, timeout_s):
            return CheckResult(None, f"no answer to a health check within {timeout_s * 1000:.0f} ms")
        return _GIVEN_UP if check.cancelled() else check.result()

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
        self._heard_at_s: dict[Endpoint, float] = {}
        """When an endpoint sent something last on a connection that was dropped since."""

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
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = self._open(endpoint)
        return connection

    def holds(self, connection: Connection) -> bool:
        """Return whether new calls still use a connection."""
        return connection in self._connections.values()

    def heard_at_s(self, endpoint: Endpoint) -> float:
        """Return when an endpoint sent something last, on any connection; minus infinity if it never did."""
        heard_s = (each.heard_at_s for each in self._connections.values() if each.endpoint == endpoint)
        return max((self._heard_at_s.get(endpoint, -math.inf), *heard_s))

    def warm(self, endpoint: Endpoint) -> None:
        """Connect the numbers in use, so that a move does not wait for a handshake."""
        for number in [each for each, num_users in self._users.items() if each and num_users]:
            try:
                self.get(endpoint, number).channel.get_state(try_to_connect=True)
            except ConnectionLostError as error:  # a PEM file that is being replaced; the next good check tries again
                _log.warning("%s: connection %d is not opened yet: %s", endpoint.address, number, error)

    def drop(self, connection: Connection) -> None:
        """Use a connection for no new call."""
        self._drop_where(lambda *key: self._connections[key] is connection)
        self._end(connection)

    def drop_lost(self, connection: Connection) -> None:
        """Drop a connection, and all others to its endpoint that are not connected."""
        self.drop(connection)
        self._drop_where(lambda *key: key[0] == connection.endpoint and not self._connections[key].is_ready)

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
            connection.drop_nowait()
            _log.warning("%s: no connection with the new TLS files yet: %s", endpoint.address, result.problem)
            return False
        self._drop_where(lambda each, _number: each == endpoint)
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
            self._end(self._connections.pop(key))

    def _end(self, connection: Connection) -> None:
        connection.drop_nowait()
        before_s = self._heard_at_s.get(connection.endpoint, -math.inf)
        self._heard_at_s[connection.endpoint] = max(before_s, connection.heard_at_s)


class TlsFiles:
    """The TLS files of endpoints, to notice when they change."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        """Take the present files for those of the open connections."""
        self._seen = {each: _states(each) for each in endpoints if each.is_encrypted}

    def __bool__(self) -> bool:
        return bool(self._seen)

    async def renew(self, connections: Connections, timeout_s: float) -> None:
        """Replace the connections to each endpoint with changed files."""
        for endpoint, seen in self._seen.items():
            now = _states(endpoint)
            if now and now != seen and await connections.replace(endpoint, timeout_s):
                self._seen[endpoint] = now


def _states(endpoint: Endpoint) -> list[tuple[int, int, int]]:
    """Return what changes when a TLS file of an endpoint does; nothing while one is away."""
    files = filter(None, (endpoint.ca, endpoint.certificate, endpoint.key))
    try:
        return [(found.st_mtime_ns, found.st_size, found.st_ino) for found in map(Path.stat, files)]
    except OSError:
        return []
