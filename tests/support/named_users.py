"""Named users behind Envoy: which replica gets a user's call, and which one has a user's Session stream."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from completion.v1 import completion_pb2 as pb
from completion.v1.completion_pb2_grpc import CompletionServiceStub
from completion_client import Endpoint
from completion_client.connections import Connections
from completion_client.endpoint import Metadata, caller_metadata
from loadtest.bench.runner.contest import AsyncClosing
from tests.support.envoy import REPLICA_HEADER

_STREAMS = 100
"""Streams on a connection; Envoy accepts 128."""
_TIMEOUT_S = 10.0
_AT_ONCE = 20

names_of = caller_metadata


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A Session stream that a replica has accepted."""

    replica: str
    call: Any


class NamedUsers(AsyncClosing):
    """Calls through one address, on as many connections as the streams need."""

    def __init__(self, server: str | Endpoint) -> None:
        """Connect to HOST:PORT, or with the credentials of an endpoint, with the first call."""
        self._endpoint = Endpoint(server) if isinstance(server, str) else server
        self._connections = Connections()
        self._num_streams = 0
        self.streams: list[OpenStream] = []
        """The streams that were opened."""

    async def aclose(self) -> None:
        """Cancel the streams and close the connections."""
        for stream in self.streams:
            stream.call.cancel()
        self._connections.close()

    async def complete(self, metadata: Metadata, sequence: int = 1) -> str:
        """Complete one request and return the replica that answered it. Raises grpc.aio.AioRpcError if it failed."""
        request = pb.CompleteRequest(session_id="s", sequence=sequence, prefix="x = ", max_tokens=1)
        call = self._stub(0).Complete(request, timeout=_TIMEOUT_S, metadata=metadata)
        replica = _replica_in(await call.initial_metadata())
        async for _event in call:
            pass
        return replica

    async def open_stream(self, metadata: Metadata) -> OpenStream:
        """Open a Session stream; return it once a replica has accepted it. Raises AioRpcError if it was refused."""
        self._num_streams += 1
        call = self._stub(1 + self._num_streams // _STREAMS).Session(metadata=metadata)
        async with asyncio.timeout(_TIMEOUT_S):
            found = await call.initial_metadata()
        if call.done():
            raise grpc.aio.AioRpcError(await call.code(), found, await call.trailing_metadata(), await call.details())
        stream = OpenStream(_replica_in(found), call)
        self.streams.append(stream)
        return stream

    async def open_streams(self, users: Iterable[str]) -> dict[str, OpenStream]:
        """Open a stream for each user, some at once."""
        remaining, found = iter(users), {}

        async def open_in_turn() -> None:
            for user in remaining:
                found[user] = await self.open_stream(names_of(user))

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(open_in_turn())
        return found

    def _stub(self, number: int) -> Any:
        return CompletionServiceStub(self._connections.get(self._endpoint, number).channel)


def busiest_over_mean(replicas: Mapping[str, str], num_replicas: int) -> float:
    """Return the users of the busiest replica over the mean; `replicas` has each user's replica."""
    return max(Counter(replicas.values()).values()) * num_replicas / len(replicas)


def _replica_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    return str(dict(metadata or ()).get(REPLICA_HEADER, ""))
