"""An editor with a `Session` stream for its whole life, which the client library reconnects."""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

from completion.v1 import completion_pb2 as pb
from completion_client import ConnectionLostError, ServiceError, SessionSettings, SessionStream
from completion_client.session_stream import RequestListener
from loadtest.targets import ClientSettings
from loadtest.targets.channels import SessionChannel
from loadtest.targets.editor import is_typed_along
from loadtest.targets.record import NOT_CONNECTED, Outcome, Record
from loadtest.targets.wire import RequestFactory, error_text, take_end

_NEVER_S = float("inf")


@dataclass(slots=True)
class StreamLog:
    """Counts the losses of a target's streams, as their StreamListener."""

    reconnects_s: list[float] = field(default_factory=list)
    """How long each lost stream was away until it came back."""
    num_lost: int = 0
    """How often a stream was lost."""
    last_error: str = ""

    def on_lost(self, error: ServiceError) -> None:
        """See StreamListener."""
        self.num_lost += 1
        self.last_error = error_text(error)

    def on_reconnected(self, away_s: float) -> None:
        """See StreamListener."""
        self.reconnects_s.append(away_s)


@dataclass(frozen=True, slots=True)
class RecordListener:
    """Writes the events of a request to its record."""

    record: Record

    def on_text(self, text: str) -> None:
        """See RequestListener."""
        self.record.num_messages += 1
        self.record.text_came(text)

    def on_end(self, end: pb.End) -> None:
        """See RequestListener."""
        self.record.num_messages += 1
        take_end(self.record, end)

    def on_error(self, error: ServiceError) -> None:
        """See RequestListener."""
        self.record.end(Outcome.ERROR, error_text(error))


class EditorStream(Protocol):
    """The stream of a session: SessionStream to one server, or ReplicaStream to the best of several."""

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        ...

    def send_nowait(
        self, request: pb.CompleteRequest, listener: RequestListener, timeout_s: float | None = None
    ) -> None:
        """Send a request, for whose answer the user waits `timeout_s`.

        Raises:
            ConnectionLostError: no server can be reached now.

        """
        ...

    def cancel_nowait(self, sequence: int) -> None:
        """Cancel a request; it ends as the server says."""
        ...

    def discard_nowait(self, sequence: int) -> None:
        """Cancel a request; no event of it comes any more."""
        ...

    def drop_nowait(self) -> None:
        """Drop the connection and open another."""
        ...

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; return the tasks that end with it."""
        ...


class StreamEditor(ABC):
    """One session. The server ends the older request when a newer one comes."""

    def __init__(self, stream: EditorStream, factory: RequestFactory, settings: ClientSettings) -> None:
        """Send requests on a stream that is open."""
        self.stream = stream
        self._factory = factory
        self._settings = settings

    @abstractmethod
    def drop_nowait(self, host_shift: int | None = None) -> None:
        """See Editor."""

    def listener(self, record: Record) -> RequestListener:
        """Return the listener that writes the events of a request to its record."""
        return RecordListener(record)

    @property
    def is_connected(self) -> bool:
        """See Editor."""
        return self.stream.is_connected

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """See Editor."""
        try:
            message, listener = self._factory.message(record, max_tokens), self.listener(record)
            self.stream.send_nowait(message, listener, self._settings.patience_s)
        except ConnectionLostError:
            record.end_unsent(NOT_CONNECTED)
            return
        request, loop = record.request, asyncio.get_running_loop()
        if self._settings.cancels_at_key and request.next_key_at_s != _NEVER_S:
            loop.call_at(record.clock.loop_time(request.next_key_at_s), self._key_pressed, record)
        if self._settings.deadline_s:
            deadline_s = request.intended_at_s + self._settings.deadline_s
            loop.call_at(record.clock.loop_time(deadline_s), self._deadline_passed, record)

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; return the tasks that end with it."""
        return self.stream.close_nowait()

    def _key_pressed(self, record: Record) -> None:
        """Cancel a request that a key made stale, unless the user types the text of its answer."""
        if record.outcome is None and not is_typed_along(record.text, record.request):
            self.stream.cancel_nowait(record.request.sequence)

    def _deadline_passed(self, record: Record) -> None:
        if record.outcome is None:
            self.stream.discard_nowait(record.request.sequence)
            record.end(Outcome.DEADLINE)


class SessionEditor(StreamEditor):
    """A session whose region is given; the server of the region is the host of its channel."""

    def __init__(
        self,
        channel: SessionChannel,
        factory: RequestFactory,
        settings: ClientSettings,
        log: StreamLog,
        seed: str,
    ) -> None:
        """Open the stream on a channel that is connected; its losses are added to `log`."""
        self._channel = channel
        stream = SessionStream(
            channel, metadata=factory.metadata, settings=session_settings(factory, settings, seed), listener=log
        )
        super().__init__(stream, factory, settings)
        stream.start_nowait()

    def drop_nowait(self, host_shift: int | None = None) -> None:
        """See Editor."""
        self.stream.drop_nowait()
        self._channel.move(host_shift)


def session_settings(factory: RequestFactory, settings: ClientSettings, seed: str) -> SessionSettings:
    """Return the client library's settings of a session, whose waits are drawn from a seed."""
    return SessionSettings(
        backoff_min_s=settings.backoff_min_s,
        backoff_max_s=settings.backoff_max_s,
        backoff_seed=seed,
        read_interval_s=factory.session.reads_every_s,
    )
