"""A process that says to its parent what a front end says, and takes no requests."""

import asyncio
import pickle
import socket

from completion_server.composition.links import Drain, FromFrontEnd, Link, Refused, Serving, ToFrontEnd
from completion_server.config import Config

REFUSED = "refused"
"""The region of a configuration with which it does not start."""
VERSION = "9.9.9"
"""Of its code, as it says."""


def run(_interface: int, version: str, plan: bytes, parent: socket.socket) -> None:
    """Serve until told to drain. The addresses are the version that the parent allows, and the configured region."""
    asyncio.run(_serve(version, pickle.loads(plan).config, parent))


async def _serve(version: str, config: Config, parent: socket.socket) -> None:
    ended = asyncio.Event()

    def receive(message: ToFrontEnd) -> None:
        if isinstance(message, Drain):
            ended.set()

    link: Link[ToFrontEnd, FromFrontEnd] = Link(receive, ended.set)
    await link.open(parent)
    if config.server.region == REFUSED:
        link.send(Refused("server.region: refused"))
    else:
        link.send(Serving(version, config.server.region, "", VERSION))
        await ended.wait()
    await link.aclose()
