"""uvicorn's WebSocket protocol, which aborts a connection whose client does not read."""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from completion_server.http.protocol import ConnectionLimits


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """One connection, after its handshake."""

    limits: ClassVar[ConnectionLimits]

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        """Begin without a connection."""
        super().__init__(*args, **options)
        self._stall_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Note that the client does not read."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.limits.stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        super().resume_writing()
        self._end_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_stall()
        super().connection_lost(exc)

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()


def limited_sockets(limits: ConnectionLimits) -> type[LimitedWebSocket]:
    """Return the protocol of a listener with these limits, as uvicorn takes it."""
    return type("LimitedWebSocket", (LimitedWebSocket,), {"limits": limits})
