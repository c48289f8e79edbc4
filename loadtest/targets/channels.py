"""Assigns the sessions of a target to gRPC channels: one for each session, or a few that all share."""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from completion_client import ChannelKey, ChannelPool, ConnectionLostError, Endpoint
from loadtest.targets import TargetError, TargetSpec
from loadtest.traffic.trace import TypedSession

CONNECT_S = 10.0
_OPTIONS = (("grpc.enable_http_proxy", 0),)


class TargetChannels:
    """The channels of a target's sessions. They are kept until `close`, for one run after another."""

    def __init__(self, spec: TargetSpec) -> None:
        """Open no channel yet."""
        self._spec = spec
        self._endpoints = tuple(Endpoint(host) for host in spec.hosts)
        self._pool = ChannelPool(CONNECT_S, _OPTIONS)
        self._num_shared = 0
        self._ranks: dict[int, int] = {}
        """The order in which sessions were seen. A worker has some of all sessions, so their numbers have gaps."""

    async def connect(self, sessions: Sequence[TypedSession]) -> None:
        """Connect the channels that sessions need.

        Raises:
            TargetError: a host takes too long.

        """
        self._num_shared = max(self._num_shared, self._spec.num_connections(len(sessions)))
        try:
            await self._pool.connect({self._key(each.number, each.region) for each in sessions})
        except ConnectionLostError as error:
            msg = f"{self._spec.name}: {error.message}"
            raise TargetError(msg) from None

    def channel(self, session: int, region: int) -> grpc.aio.Channel:
        """Return the channel of a session in a region, connected or not."""
        return self._pool.channel(self._key(session, region))

    async def ready(self, session: int, region: int) -> grpc.aio.Channel:
        """Return the channel of a session in a region when it is connected.

        Raises:
            ConnectionLostError: its host takes too long.

        """
        return await self._pool.ready(self._key(session, region))

    def disconnect(self, session: int, region: int) -> None:
        """Close a session's own channel; a shared one stays open."""
        if not self._num_shared:
            self._pool.disconnect(self._key(session, region))

    def close(self) -> None:
        """Close all channels."""
        self._pool.close()

    def _key(self, session: int, region: int) -> ChannelKey:
        endpoint = self._endpoints[region % len(self._endpoints)]
        if not self._num_shared:
            return ChannelKey(endpoint, session)
        return ChannelKey(endpoint, self._ranks.setdefault(session, len(self._ranks)) % self._num_shared)


@dataclass(slots=True)
class SessionChannel:
    """The channel of one session, as a ChannelSource."""

    channels: TargetChannels
    session: int
    region: int
    host_shift: int = 0
    """How many hosts after its region's own the session goes to."""

    def channel(self) -> grpc.aio.Channel:
        """See ChannelSource."""
        return self.channels.channel(self.session, self.region + self.host_shift)

    async def ready(self) -> grpc.aio.Channel:
        """See ChannelSource."""
        return await self.channels.ready(self.session, self.region + self.host_shift)

    def disconnect(self) -> None:
        """See ChannelSource."""
        self.channels.disconnect(self.session, self.region + self.host_shift)

    def move(self, host_shift: int | None) -> None:
        """Go to another host from now on; None stays at the present one."""
        if host_shift is not None:
            self.host_shift = host_shift
