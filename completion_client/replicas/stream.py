"""A session's stream over several servers: goes to the best one at each request, and leaves one that fails.

A session has one leg, the stream to the best server, and after a move the former legs until their requests have ended.
The first request after a change opens the new leg and travels with it, so a move costs no round trip.
"""

import asyncio
import random
from contextlib import suppress
from typing import NamedTuple

from completion.v1 import completion_pb2 as pb
from completion_client.backoff import Backoff
from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import ConnectionLostError, ServiceError
from completion_client.replicas.answered import AnsweredRequests
from completion_client.replicas.leg import Leg, RoutedRequest
from completion_client.replicas.view import Move, OnMove, Replicas
from completion_client.session_stream import RequestListener, SessionSettings, StreamListener

_MS_PER_S = 1000


class Route(NamedTuple):
    """Where a request of a session is, or was answered."""

    endpoint: Endpoint
    num_sent: int
    """To how many servers it was sent, one after another."""


class ReplicaStream:
    """Sends the requests of one session to the best server. It has the calls of a SessionStream.

    The loss of the stream fails only the requests that have text: the others are sent to the next server, if one can be
    used. A server that has failed, drains or sends nothing is left; a user returns to it when its time has come.
    """

    def __init__(
        self,
        replicas: Replicas,
        *,
        metadata: Metadata = (),
        settings: SessionSettings | None = None,
        listener: StreamListener | None = None,
        on_move: OnMove | None = None,
    ) -> None:
        """Open the first leg with `start_nowait`; `on_move` gets each change to another server."""
        self._replicas = replicas
        self._metadata = metadata
        self._settings = settings or SessionSettings()
        self._listener = listener
        self._on_move = on_move
        seed = self._settings.backoff_seed
        self._backoff = Backoff(self._settings.backoff_min_s, self._settings.backoff_max_s, seed)
        self._random = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._leg: Leg | None = None
        """None while the stream is lost."""
        self._endpoint = replicas.best()
        self._requests: dict[int, RoutedRequest] = {}
        self._answered = AnsweredRequests()
        self._lost_at_s: float | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._former: set[Leg] = set()
        self._is_dropping = self._is_closing = False

    @property
    def endpoint(self) -> Endpoint:
        """The server of the present leg, or of the last one."""
        return self._endpoint

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        return self._leg is not None or self._replicas.is_usable(self._replicas.best())

    @property
    def num_open(self) -> int:
        """Requests that have neither ended nor failed."""
        return len(self._requests)

    def is_open(self, sequence: int) -> bool:
        """Tell whether a request has neither ended nor failed."""
        return sequence in self._requests

    def route(self, sequence: int) -> Route | None:
        """Return where an open request is, also while its listener gets its last event; None if it is not open."""
        request = self._requests.get(sequence)
        return None if request is None else Route(request.leg.endpoint, request.num_sent)

    def start_nowait(self) -> None:
        """Open the first leg, to the best server, or to the next if a PEM file of that can't be read.

        Raises:
            ConnectionLostError: the files of none can be read.

        """
        if self._leg_for_next() is None:
            self._open(self._replicas.best())

    def send_nowait(
        self, request: pb.CompleteRequest, listener: RequestListener, timeout_s: float | None = None
    ) -> None:
        """Send a request whose sequence number is higher than those before it; see SessionStream.

        `timeout_s` is how long the caller waits: a share of it is for each server.

        Raises:
            ConnectionLostError: no server can be used.

        """
        leg = self._leg_for_next()
        if leg is None:
            raise ConnectionLostError(self._replicas.why_none())
        ends_at_s = None if timeout_s is None else self._loop.time() + timeout_s
        routed = RoutedRequest(self, request, listener, leg, ends_at_s)
        self._requests[request.sequence] = routed
        try:
            self._send(routed, leg)
        except ConnectionLostError:
            del self._requests[request.sequence]
            raise

    def cancel_nowait(self, sequence: int) -> None:
        """Cancel a request; its listener gets the end that the server sends. Ignored if it is not open."""
        if request := self._requests.get(sequence):
            request.is_cancelled = True
            request.leg.cancel_nowait(sequence)

    def discard_nowait(self, sequence: int) -> None:
        """Cancel a request; its listener gets no further event. Ignored if it is not open."""
        if request := self._requests.pop(sequence, None):
            request.leg.discard_nowait(sequence)
            self._tidy(request.leg)

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        """Send feedback to the server that answered. It is dropped if no stream to that server is open."""
        endpoint = self._answered.endpoint(feedback.sequence, self._loop.time())
        if leg := next((each for each in reversed(self._legs()) if each.endpoint == endpoint), None):
            leg.report_nowait(feedback)

    def drop_nowait(self) -> None:
        """Drop the streams and open another after the back-off, as after a change of network. Open requests fail."""
        self._is_dropping = True
        try:
            for leg in self._legs():
                leg.drop_nowait(ConnectionLostError("the connection was dropped"))
        finally:
            self._is_dropping = False

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the streams; return the tasks that end with them, for the caller to await.

        The listeners of open requests get no further event.
        """
        self._is_closing = True
        if self._reopening is not None:
            self._reopening.cancel()
            self._ending.add(self._reopening)
        for leg in self._legs():
            self._ending.update(leg.close_nowait())
        self._leg, self._requests = None, {}
        self._former.clear()
        return list(self._ending)

    def leg_lost(self, leg: Leg, error: ServiceError) -> None:
        """See LegOwner."""
        if not self._is_dropping:
            leg.may_retry = self._replicas.note_error(leg.connection, error)
        self._end(leg)
        if leg is not self._leg:
            return
        self._leg = None
        is_first_loss = self._lost_at_s is None or leg.was_connected
        if self._lost_at_s is None:  # else this leg replaced one that was lost, but was never accepted
            self._lost_at_s = self._loop.time()
        if self._listener is not None and is_first_loss:
            self._listener.on_lost(error)
        if self._reopening is None or self._reopening.done():
            self._reopening = asyncio.create_task(self._reopen(leg.endpoint, error))

    def leg_accepted(self, leg: Leg, away_s: float) -> None:
        """See LegOwner."""
        if leg is self._leg:
            self._lost_at_s = None
            self._backoff.reset()
            if self._listener is not None:
                self._listener.on_reconnected(away_s)

    def request_ended(self, request: RoutedRequest, end: pb.End) -> None:
        """See LegOwner."""
        leg = request.leg
        leg.note_answer()
        may_retry = self._replicas.note_end(leg.connection, end, self._loop.time() - request.sent_at_s)
        if not (may_retry and not end.text and self._resend(request)):
            if request.has_text or end.text:
                self._answered.add(request.message.sequence, leg.endpoint, self._loop.time())
            request.listener.on_end(end)
            self._requests.pop(request.message.sequence, None)
        self._tidy(leg)

    def request_failed(self, request: RoutedRequest, error: ServiceError) -> None:
        """See LegOwner."""
        if self._requests.get(request.message.sequence) is not request:
            return  # a listener of the same leg sent a newer one elsewhere
        if request.leg.may_retry and self._resend(request):
            return
        request.listener.on_error(error)
        self._requests.pop(request.message.sequence, None)

    def _leg_for_next(self) -> Leg | None:
        """Return the leg for the next request, on the best server; None if no server can be used."""
        for _ in self._replicas.regions.endpoints:
            with suppress(ConnectionLostError):  # that endpoint is passed over from now on
                return None if self._is_closing else self._best_leg()
        return self._leg

    def _best_leg(self) -> Leg | None:
        best, leg = self._replicas.best(), self._leg
        is_current = leg is not None and self._replicas.regions.is_current(leg.connection)
        if leg is not None and leg.endpoint == best and is_current:
            return leg
        if self._replicas.is_usable(best):
            return self._open(best)
        if leg is None and self._replicas.connection(best).is_ready:
            return self._open(best)  # nothing is left to lose
        return leg

    def _open(self, endpoint: Endpoint) -> Leg:
        """Open a leg. The former one ends with its last request."""
        before = self._leg
        connection = self._replicas.connection(endpoint)
        leg = Leg(
            self,
            self._replicas.regions,
            connection,
            self._metadata,
            self._settings,
            self._lost_at_s,
            self._replicas.connect_timeout_s,
        )
        self._leg = leg
        if self._on_move is not None and endpoint != self._endpoint:
            self._on_move(Move(self._endpoint, endpoint, self._replicas.why_not(self._endpoint)))
        self._endpoint = endpoint
        if before is not None:
            self._former.add(before)
            self._tidy(before)
        return leg

    def _send(self, request: RoutedRequest, leg: Leg) -> None:
        now_s = self._loop.time()
        left_s = None if request.ends_at_s is None else request.ends_at_s - now_s
        request.leg, request.sent_at_s = leg, now_s
        request.num_sent += 1
        leg.send_nowait(request, self._replicas.silence_s(leg.connection, left_s))
        for older in tuple(filter(request.supersedes, self._requests.values())):
            self._supersede(older)

    def _supersede(self, request: RoutedRequest) -> None:
        """Cancel and end a request on a former server, which does not get the newer one."""
        request.leg.discard_nowait(request.message.sequence)
        request.listener.on_end(pb.End(finish_reason=pb.FINISH_REASON_SUPERSEDED))
        self._requests.pop(request.message.sequence, None)
        self._tidy(request.leg)

    def _resend(self, request: RoutedRequest) -> bool:
        """Send a request that has no text to another server; return whether there was one."""
        if request.has_text or request.is_cancelled or self._is_dropping:
            return False
        if request.ends_at_s is not None and self._loop.time() >= request.ends_at_s:
            return False
        leg = self._leg_for_next()
        if leg is None or leg.endpoint == request.leg.endpoint or leg.last_sequence >= request.message.sequence:
            return False
        try:
            self._send(request, leg)
        except ConnectionLostError:
            return False
        return True

    def _legs(self) -> tuple[Leg, ...]:
        return (*self._former, *([self._leg] if self._leg else []))

    def _tidy(self, leg: Leg) -> None:
        """End a former leg that has no request any more."""
        if leg in self._former and not leg.num_open:
            self._end(leg)

    def _end(self, leg: Leg) -> None:
        self._former.discard(leg)
        for task in leg.close_nowait():
            self._ending.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Task[None]") -> None:
        """Forget a task that has ended well; `close_nowait` returns the others."""
        if task.cancelled() or task.exception() is None:
            self._ending.discard(task)

    async def _reopen(self, lost: Endpoint, error: ServiceError) -> None:
        """Open a leg for a session that has nothing to send; its next request opens one at once."""
        retry_after_s = (error.retry_after_ms or 0) / _MS_PER_S
        if self._replicas.best() != lost:
            retry_after_s = self._random.uniform(0, self._replicas.regions.settings.move_spread_s)
        while self._leg is None:
            await asyncio.sleep(retry_after_s + self._backoff.next_s())
            retry_after_s = 0.0
            with suppress(ConnectionLostError):
                endpoint = await self._replicas.first_connected()
                if self._leg is None:
                    self._open(endpoint)
