"""A stream of a session to one of several servers, and the guard that notices when that sends nothing any more."""

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from completion.v1 import completion_pb2 as pb
from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import ServiceError
from completion_client.regions.connections import Connection
from completion_client.regions.silence import SilenceError, SilenceGuard
from completion_client.session_settings import RequestListener, SessionSettings
from completion_client.session_stream import SessionStream

if TYPE_CHECKING:
    from completion_client.replicas.legs import Legs
    from completion_client.replicas.view import Replicas


class Leg(SessionStream):
    """A stream of `owner`, which learns of its loss and of its server's silence."""

    def __init__(
        self,
        owner: "Legs",
        replicas: "Replicas",
        connection: Connection,
        metadata: Metadata,
        settings: SessionSettings,
        lost_at_s: float | None,
    ) -> None:
        """Open the stream; see SessionStream."""
        token = replicas.token(connection.endpoint)
        super().__init__(connection, metadata, token, settings, lost_at_s, replicas.connect_timeout_s)
        self.may_retry = False
        """Whether the requests of this lost leg may be sent to another server."""
        self._owner = owner
        alive_at_s = partial(replicas.regions.alive_at_s, connection)
        self._guard = SilenceGuard(alive_at_s, lambda _silence_s: owner.leg_silent(self), self._on_given_up)

    @property
    def endpoint(self) -> Endpoint:
        """The server."""
        return self.connection.endpoint

    @property
    def is_silent(self) -> bool:
        """Whether the server sends nothing, though something is due."""
        return self._guard.is_silent

    def send_nowait(
        self, request: pb.CompleteRequest, listener: RequestListener, silence_s: float | None = None
    ) -> None:
        """Send a request, see SessionStream; the server may send nothing for `silence_s`, or for ever."""
        super().send_nowait(request, listener)
        if silence_s is not None:
            self._guard.expect_nowait(silence_s)

    def discard_nowait(self, sequence: int) -> None:
        """See SessionStream."""
        super().discard_nowait(sequence)
        self.note_answer()

    def heard_nowait(self) -> None:
        """Note that the server sent something."""
        self._guard.heard_nowait()
        self.connection.heard_at_s = asyncio.get_running_loop().time()

    def note_answer(self) -> None:
        """Expect nothing more if no request is open."""
        if not self.num_open:
            self._guard.stop_nowait()

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; see SessionStream."""
        self._guard.stop_nowait()
        return super().close_nowait()

    def _on_lost(self, error: ServiceError, /) -> None:
        self._owner.leg_lost(self, error)

    def _on_accepted(self, away_s: float, /) -> None:
        self.heard_nowait()
        self._owner.leg_accepted(self, away_s)

    def _on_given_up(self, silence_s: float) -> None:
        self.drop_nowait(SilenceError(f"{self.endpoint.address} has sent nothing for {silence_s * 1000:.0f} ms"))
