"""Editors that keep a `Session` stream to a completion server."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from completion.v1 import completion_pb2 as pb
from completion_client import CompletionClient, ConnectionLostError, Endpoint, ServiceError, SessionSettings
from completion_client.request_fields import give_timeout
from loadtest.targets import ClientSettings
from loadtest.targets.editor import RequestFactory, error_text, is_typed_along, take_end
from loadtest.targets.record import NOT_CONNECTED, Outcome, Record
from loadtest.traffic.typed import NEVER_S


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
    note_route: Callable[[Record], None]
    """Notes, at each event, which server it came from."""

    def on_text(self, text: str) -> None:
        """See RequestListener."""
        self.note_route(self.record)
        self.record.num_messages += 1
        self.record.text_came(text)

    def on_end(self, end: pb.End) -> None:
        """See RequestListener."""
        self.note_route(self.record)
        self.record.num_messages += 1
        self.record.num_duplicates += self.record.has_ended
        take_end(self.record, end)

    def on_error(self, error: ServiceError) -> None:
        """See RequestListener."""
        self.note_route(self.record)
        self.record.end(Outcome.ERROR, error_text(error))


class StreamEditor:
    """One session. The server ends the older request when a newer one comes."""

    def __init__(
        self,
        client: CompletionClient,
        factory: RequestFactory,
        settings: ClientSettings,
        log: StreamLog,
        seed: str,
        *,
        on_shift: Callable[[int], None] | None,
        hosts: Mapping[Endpoint, int],
    ) -> None:
        """Open the stream to a host of `client`; its losses are added to `log`, its waits are drawn from a seed.

        `on_shift` moves to another host; without it an editor moves when a server is really lost, not with an event.
        `hosts` numbers those that the client chooses from, if it does.
        """
        self._factory = factory
        self._settings = settings
        self._on_shift = on_shift
        self._hosts = hosts
        stream_settings = SessionSettings(backoff_seed=seed, read_interval_s=factory.session.reads_every_s)
        self.stream = client.stream(metadata=factory.metadata, settings=stream_settings, listener=log)
        self.stream.start_nowait()

    def drop_nowait(self, host_shift: int | None = None) -> None:
        """See Editor."""
        if host_shift is None or self._on_shift is not None:
            self.stream.drop_nowait()
        if host_shift is not None and self._on_shift is not None:
            self._on_shift(host_shift)

    @property
    def is_connected(self) -> bool:
        """See Editor."""
        return self.stream.is_connected

    def send_nowait(self, record: Record, max_tokens: int | None = None) -> None:
        """See Editor."""
        request, loop = record.request, asyncio.get_running_loop()
        message = self._factory.message(record, max_tokens)
        ends_at_s = record.clock.loop_time(request.intended_at_s + (self._settings.deadline_s or NEVER_S))
        if ends_at_s != NEVER_S:
            give_timeout(message, ends_at_s - loop.time())
        try:
            self.stream.send_nowait(message, RecordListener(record, self._note_route), self._settings.patience_s)
        except ConnectionLostError:
            record.end_unsent(NOT_CONNECTED)
            return
        self._note_route(record)
        if self._settings.cancels_at_key and request.next_key_at_s != NEVER_S:
            loop.call_at(record.clock.loop_time(request.next_key_at_s), self._key_pressed, record)
        if ends_at_s != NEVER_S:
            loop.call_at(ends_at_s, self._deadline_passed, record)

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the stream; return the tasks that end with it."""
        return self.stream.close_nowait()

    def _note_route(self, record: Record) -> None:
        """Note which of several servers an open request is at."""
        if self._hosts and (route := self.stream.route(record.request.sequence)) is not None:
            record.routed(self._hosts[route.endpoint], route.num_sent)

    def _key_pressed(self, record: Record) -> None:
        """Cancel a request that a key made stale, unless the user types the text of its answer."""
        if not record.has_ended and not is_typed_along(record.text, record.request):
            self.stream.cancel_nowait(record.request.sequence)

    def _deadline_passed(self, record: Record) -> None:
        if not record.has_ended:
            self.stream.discard_nowait(record.request.sequence)
            record.end(Outcome.DEADLINE)
