"""gRPC channels by server and number, each with a connection of its own."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import grpc

from completion_client.endpoint import ChannelOptions, Endpoint
from completion_client.errors import ConnectionLostError

CONNECT_TIMEOUT_S = 10.0

_CONNECTS_AT_ONCE = 500
_OPTIONS = (
    # Without this gRPC shares one connection between all channels to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # The session's back-off decides when to try again; gRPC's own must not delay that.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class ChannelKey(NamedTuple):
    """Names a channel of a pool."""

    endpoint: Endpoint
    number: int = 0
    """Tells several connections to one endpoint apart."""


class ChannelSource(Protocol):
    """Provides the channel of a session. Which channel that is may change from call to call."""

    def channel(self) -> grpc.aio.Channel:
        """Return the channel, connected or not."""
        ...

    async def ready(self) -> grpc.aio.Channel:
        """Return the channel when it is connected.

        Raises:
            ConnectionLostError: there is no connection within a timeout.

        """
        ...

    def disconnect(self) -> None:
        """Close the channel, unless other sessions share it."""
        ...


def open_channel(endpoint: Endpoint, options: ChannelOptions = ()) -> grpc.aio.Channel:
    """Return a channel with a connection of its own and this library's options, besides `options`.

    Raises:
        EndpointError: a PEM file of the endpoint can't be read.

    """
    return endpoint.open_aio_channel((*_OPTIONS, *options))


class ChannelPool:
    """Opens channels when they are first needed and keeps them until they are disconnected."""

    def __init__(self, connect_timeout_s: float = CONNECT_TIMEOUT_S, options: ChannelOptions = ()) -> None:
        """Open no channel yet; `options` are gRPC's channel options besides those of the pool."""
        self._connect_timeout_s = connect_timeout_s
        self._options = options
        self._channels: dict[ChannelKey, grpc.aio.Channel] = {}

    def channel(self, key: ChannelKey) -> grpc.aio.Channel:
        """Return a channel, connected or not.

        Raises:
            EndpointError: a PEM file of the endpoint can't be read.

        """
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = open_channel(key.endpoint, self._options)
        return channel

    async def ready(self, key: ChannelKey) -> grpc.aio.Channel:
        """Return a channel when it is connected.

        Raises:
            ConnectionLostError: there is no connection within the timeout.
            EndpointError: a PEM file of the endpoint can't be read.

        """
        channel = self.channel(key)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await channel.channel_ready()
        except TimeoutError:
            msg = f"no connection to {key.endpoint.address}"
            raise ConnectionLostError(msg) from None
        return channel

    async def connect(self, keys: Iterable[ChannelKey]) -> None:
        """Connect all channels, a bounded number at once.

        Raises:
            ConnectionLostError: one is not connected within the timeout.

        """
        remaining = iter(keys)

        async def connect_in_turn() -> None:
            for key in remaining:
                await self.ready(key)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_CONNECTS_AT_ONCE):
                    group.create_task(connect_in_turn())
        except* ConnectionLostError as failures:
            raise failures.exceptions[0] from None

    def disconnect(self, key: ChannelKey) -> None:
        """Close a channel."""
        # Dropping the reference closes it. Channel.close() would first search all tasks of the event loop for its
        # calls, which is slow with thousands of channels.
        self._channels.pop(key, None)

    def close(self) -> None:
        """Close all channels."""
        self._channels.clear()


@dataclass(frozen=True, slots=True)
class SharedChannel:
    """A channel of a pool that several sessions and calls share."""

    pool: ChannelPool
    key: ChannelKey

    def channel(self) -> grpc.aio.Channel:
        """See ChannelSource."""
        return self.pool.channel(self.key)

    async def ready(self) -> grpc.aio.Channel:
        """See ChannelSource."""
        return await self.pool.ready(self.key)

    def disconnect(self) -> None:
        """Keep the channel: others use it, and gRPC connects it again after a loss."""
