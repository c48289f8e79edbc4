"""gRPC connections for many sessions, each with its own or a few shared by all, to hosts that may be lost."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from loadtest.targets import TargetError, TargetSpec

CONNECT_S = 10.0
_CONNECTS_AT_ONCE = 500
_CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # gRPC would share one connection between channels to the same address
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # When to try again is the editor's decision.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

_Place = tuple[str, int]
"""A host and the connection's number there."""


class ChannelPool:
    """The connections of a target. They are kept until `close`, for one run after another."""

    def __init__(self, spec: TargetSpec) -> None:
        """Connect to nothing yet."""
        self._spec = spec
        self._channels: dict[_Place, grpc.aio.Channel] = {}
        self._num_shared = 0
        self._turns: dict[int, int] = {}
        """The order in which sessions were seen. Their numbers may have gaps, as a worker has some of all sessions."""

    def share(self, sessions: int) -> None:
        """Make as many connections as so many sessions need, where they share any."""
        self._num_shared = max(self._num_shared, self._spec.num_connections(sessions))

    def place(self, session: int, region: int) -> _Place:
        """Return where a session belongs that asks in a region."""
        host = self._spec.hosts[region % len(self._spec.hosts)]
        if not self._num_shared:
            return host, session
        return host, self._turns.setdefault(session, len(self._turns)) % self._num_shared

    def channel(self, place: _Place) -> grpc.aio.Channel:
        """Return a place's channel, connected or not."""
        channel = self._channels.get(place)
        if channel is None:
            channel = self._channels[place] = grpc.aio.insecure_channel(place[0], options=_CHANNEL_OPTIONS)
        return channel

    async def ready(self, place: _Place) -> grpc.aio.Channel:
        """Return a place's channel when it is connected.

        Raises:
            TargetError: it takes too long.

        """
        channel = self.channel(place)
        try:
            async with asyncio.timeout(CONNECT_S):
                await channel.channel_ready()
        except TimeoutError:
            msg = f"{self._spec.name}: no connection to {place[0]}"
            raise TargetError(msg) from None
        return channel

    async def connect(self, places: Iterable[_Place]) -> None:
        """Connect all, a bounded number at once.

        Raises:
            TargetError: one takes too long.

        """
        jobs = iter(places)

        async def connect_in_turn() -> None:
            for place in jobs:
                await self.ready(place)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_CONNECTS_AT_ONCE):
                    group.create_task(connect_in_turn())
        except* TargetError as failures:
            raise failures.exceptions[0] from None

    def hang_up(self, place: _Place) -> None:
        """Close a session's own connection; one that is shared stays."""
        if not self._num_shared:
            # Letting go closes it. Channel.close() first looks through all tasks of the loop, once for each channel.
            self._channels.pop(place, None)

    def close(self) -> None:
        """Close all."""
        self._channels.clear()


@dataclass(slots=True)
class SessionChannel:
    """A session's way over the connections of a target."""

    pool: ChannelPool
    session: int
    region: int
    shift: int = 0
    """How many hosts after its own it goes to."""

    def channel(self) -> grpc.aio.Channel:
        """Return the channel, connected or not."""
        return self.pool.channel(self._place())

    async def ready(self) -> grpc.aio.Channel:
        """Return the channel when it is connected. Raises TargetError where it takes too long."""
        return await self.pool.ready(self._place())

    def hang_up(self, host_shift: int | None = None) -> None:
        """Leave the connection, for one to another host if that is said."""
        self.pool.hang_up(self._place())
        if host_shift is not None:
            self.shift = host_shift

    def _place(self) -> _Place:
        return self.pool.place(self.session, self.region + self.shift)
