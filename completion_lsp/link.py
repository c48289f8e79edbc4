"""The connection to the completion server: one session, which is opened as soon as a server can be reached."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from completion_client import (
    CompletionClient,
    Endpoint,
    EndpointError,
    Move,
    PermissionDeniedError,
    ServiceError,
    Session,
    TokenError,
    UnauthenticatedError,
)
from completion_client.token_sources import VARIABLE

_log = logging.getLogger(__name__)

_RETRY_S = 2.0
"""Between attempts to reach a first server; each waits for a connection itself."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Where the servers are and who asks them."""

    endpoints: Sequence[Endpoint]
    user: str | None = None
    tenant: str | None = None


class LinkListener(Protocol):
    """Hears whether there is a connection."""

    def on_connected(self) -> None:
        """Take the first connection, the one after a loss, or one to another server."""
        ...

    def on_away(self) -> None:
        """Take that there is no connection. The link looks for one by itself."""
        ...


class Link:
    """Holds a session open from `start_nowait` to `aclose`."""

    def __init__(self, servers: Servers) -> None:
        """Use the best of the servers at each moment. `listeners` are to be added before the start."""
        self._servers = servers
        self.listeners: list[LinkListener] = []
        self.on_refused: Callable[[str], object] = lambda message: None
        """Gets a sentence for the user when the server does not take the token; each sentence once."""
        self._told = ""
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None

    def session(self) -> Session | None:
        """Return the session, if a request can be sent now."""
        return self._session if self._session is not None and self._session.is_connected else None

    def start_nowait(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run(), name="link to the completion server")

    async def aclose(self) -> None:
        """End the session."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        problem = ""
        while True:
            try:
                await self._hold()
            except (ServiceError, EndpointError) as error:
                if str(error) != problem:
                    problem = str(error)
                    _log.warning("no completion server can be reached: %s", problem)
                self._tell(connected=False)
                await asyncio.sleep(_RETRY_S)

    async def _hold(self) -> None:
        servers = self._servers
        async with (
            CompletionClient(servers.endpoints, user=servers.user, tenant=servers.tenant) as replicas,
            replicas.session(listener=self, on_move=self._on_move) as session,
        ):
            self._session = session
            _log.info("connected to %s", replicas.endpoint.address)
            self._tell(connected=True)
            try:
                await asyncio.Event().wait()
            finally:
                self._session = None

    def on_lost(self, error: ServiceError) -> None:
        """See completion_client's StreamListener. There may be another server to which the next request can go."""
        _log.warning("the connection was lost: %s", error)
        self._tell_refusal(error)
        if self.session() is None:
            self._tell(connected=False)

    def on_reconnected(self, away_s: float) -> None:
        """See completion_client's StreamListener."""
        _log.info("connected again after %.1f s", away_s)
        self._tell(connected=True)

    def _tell_refusal(self, error: ServiceError) -> None:
        """Tell the user of a token that the server does not take. The client itself waits before it sends it again."""
        if isinstance(error, TokenError):
            message = f"no completions: {error.message}"
        elif isinstance(error, UnauthenticatedError):
            how = f"start completion-lsp with --token-file FILE, --token-command COMMAND or the variable {VARIABLE}"
            message = f"no completions: the server wants a token: {error.message}; {how}"
        elif isinstance(error, PermissionDeniedError):
            message = f"no completions: the server does not allow them to you: {error.message}"
        else:
            return
        if message != self._told:
            self._told = message
            self.on_refused(message)

    def _tell(self, *, connected: bool) -> None:
        for each in self.listeners:
            if connected:
                each.on_connected()
            else:
                each.on_away()

    def _on_move(self, move: Move) -> None:
        _log.info(
            "goes on at %s instead of %s: %s", move.after.address, move.before.address, move.why or "it is nearer"
        )
        asyncio.get_running_loop().call_soon(self._moved)  # later: a listener may be sending the request that moves

    def _moved(self) -> None:
        """Tell of the other server, which may have another model. After a loss `on_reconnected` tells."""
        if self.session() is not None:
            self._tell(connected=True)
