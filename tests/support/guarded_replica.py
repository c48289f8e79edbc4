"""A replica that wants a token: a real gRPC server without an engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from tests.support.replica_fakes import FakeReplica, fake_replicas


@dataclass
class Guarded(FakeReplica):
    """Wants one of its tokens, and ends the streams of those that are revoked."""

    tokens: set[str] = field(default_factory=lambda: {"good"})
    status: grpc.StatusCode = grpc.StatusCode.UNAUTHENTICATED
    presented: list[str | None] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def revoke(self, *others: str) -> None:
        """Take these tokens only."""
        self.tokens = set(others)
        self.changed.set()
        self.changed = asyncio.Event()

    async def check(self, context: Any) -> str | None:
        token = dict(context.invocation_metadata()).get("authorization", "").removeprefix("Bearer ") or None
        self.presented.append(token)
        if token not in self.tokens:
            await context.abort(self.status, "it is unknown" if token else "there is none")
        return token

    async def Complete(self, request, context):  # noqa: ANN001, ANN201
        await self.check(context)
        async for event in super().Complete(request, context):
            yield event

    async def Session(self, request_iterator, context):  # noqa: ANN001, ANN201
        token = await self.check(context)
        await context.send_initial_metadata(())
        serving = asyncio.create_task(super().Session(request_iterator, context))
        while not serving.done():
            revoking = asyncio.create_task(self.changed.wait())
            await asyncio.wait({serving, revoking}, return_when=asyncio.FIRST_COMPLETED)
            revoking.cancel()
            if token not in self.tokens:
                serving.cancel()
                await context.abort(self.status, "it is revoked")

    async def ReportFeedback(self, request, context):  # noqa: ANN001, ANN201
        await self.check(context)
        return await super().ReportFeedback(request, context)


@asynccontextmanager
async def run_guarded() -> AsyncIterator[tuple[Guarded, str]]:
    """Run a server that takes the token "good"; yield it and its address."""
    server = Guarded()
    async with fake_replicas(server):
        yield server, server.address
