"""A session's stream over several servers: goes to the best one at each request, and leaves one that fails."""

import asyncio
from typing import NamedTuple

from completion.v1 import completion_pb2 as pb
from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import ConnectionLostError, ServiceError
from completion_client.feedback import FeedbackCalls
from completion_client.legs import Legs
from completion_client.open_request import OpenRequest
from completion_client.replicas import OnMove, Replicas
from completion_client.session_settings import RequestListener, SessionSettings, StreamListener
from completion_client.session_stream import SessionStream


class Route(NamedTuple):
    """The server that has a request of a session, or that answered it."""

    endpoint: Endpoint
    num_sent: int
    """Number of servers to which the request was sent, one after another."""


class ReplicaStream:
    """Sends the requests of one session to the best server.

    The loss of the stream fails only the requests that have text: the others are sent to the next server, if one can be
    used. The session leaves a server that has failed, drains or is silent, and returns to it after its health check has
    succeeded. A request that has text waits for a silent server until the deadline of the request.
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
        self._legs = Legs(replicas, metadata, settings or SessionSettings(), listener, on_move, self)
        self._feedback = FeedbackCalls(replicas, metadata)
        self._loop = asyncio.get_running_loop()
        self._requests: dict[int, OpenRequest] = {}
        self._last_sequence = 0

    @property
    def endpoint(self) -> Endpoint:
        """The server of the present leg, or of the last one."""
        return self._legs.endpoint

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        return self._legs.is_connected

    def route(self, sequence: int) -> Route | None:
        """Return where an open request is, also while its listener gets its last event; None if it is not open."""
        request = self._requests.get(sequence)
        return None if request is None else Route(request.leg.endpoint, request.num_sent)

    def start_nowait(self) -> None:
        """Open the first leg, to the best server, or to the next if a PEM file of that can't be read.

        Raises ConnectionLostError if the files of none can be read.
        """
        if self._legs.for_next() is None:
            self._legs.open(self._replicas.best())

    def send_nowait(
        self, request: pb.CompleteRequest, listener: RequestListener, timeout_s: float | None = None
    ) -> None:
        """Send a request whose sequence number is higher than those before it.

        `timeout_s` is how long the caller waits: a share of it is for each of several servers. Raises ValueError if the
        number is not above 0 and above those before it, ConnectionLostError if no server can be used.
        """
        leg = self._legs.for_next()
        if leg is None:
            raise ConnectionLostError(self._replicas.why_none())
        if request.sequence <= self._last_sequence:
            msg = f"sequence: must be above {self._last_sequence}, was {request.sequence}"
            raise ValueError(msg)
        ends_at_s = None if timeout_s is None else self._loop.time() + timeout_s
        self._last_sequence = request.sequence
        opened = self._requests[request.sequence] = OpenRequest(request, listener, ends_at_s, leg)
        try:
            self._send(opened, leg)
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
            self._leave(request, request.leg)

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        """Send feedback to the server that answered: in a call of its own unless a stream to that server is open."""
        has_choice = self._replicas.has_choice
        endpoint = self._feedback.answered_by(feedback.sequence) if has_choice else self.endpoint
        leg = self._legs.to(endpoint)
        if leg is not None and leg.is_open:
            leg.report_nowait(feedback)
        elif endpoint is not None:
            self._feedback.send_nowait(endpoint, feedback)

    def drop_nowait(self) -> None:
        """Drop the streams and open another after the back-off, as after a change of network. Open requests fail."""
        self._legs.drop_nowait(ConnectionLostError("the connection was dropped"))

    def close_nowait(self) -> list[asyncio.Task[None]]:
        """End the streams; return the tasks that end with them, for the caller to await.

        The listeners of open requests get no further event.
        """
        self._requests = {}
        return [*self._legs.close_nowait(), *self._feedback.close_nowait()]

    def request_ended(self, request: OpenRequest, end: pb.End) -> None:
        """Take the end that a server sent."""
        leg = request.leg
        self._legs.note_answer()
        may_retry = self._replicas.note_end(leg.connection, end, self._loop.time() - request.sent_at_s)
        if not (may_retry and not end.text and self._resend(request)):
            if request.has_text or end.text:
                self._feedback.answered(request.message.sequence, leg.endpoint)
            self._finish(request, end)
        self._legs.tidy(leg)

    def request_failed(self, request: OpenRequest, error: ServiceError) -> None:
        """Take the end of the leg of a request."""
        if self._requests.get(request.message.sequence) is not request:
            return  # a listener of the same leg sent a newer one elsewhere
        if request.leg.may_retry and self._resend(request):
            return
        is_cancelled = request.is_cancelled and request.leg.is_quiet
        self._finish(request, pb.End(finish_reason=pb.FINISH_REASON_CANCELLED) if is_cancelled else error)

    def leg_silent(self, leg: SessionStream) -> float | None:
        """Send requests without text to another server; return until when the others wait, None if there is none.

        The server may have stalled, so they wait until their deadlines: they can't be sent elsewhere.
        """
        for request in self._on(leg):
            if request.message.sequence in self._requests:  # else a newer one has superseded it
                self._resend(request)
        now_s = self._loop.time()
        ends_at_s = [now_s if each.ends_at_s is None else each.ends_at_s for each in self._on(leg)]
        return max(ends_at_s) + self._replicas.regions.settings.silence_max_s if ends_at_s else None

    def _finish(self, request: OpenRequest, last: pb.End | ServiceError) -> None:
        """Give the listener its last event; the request has its route until then."""
        request.has_ended = True
        if isinstance(last, ServiceError):
            request.listener.on_error(last)
        else:
            request.listener.on_end(last)
        self._requests.pop(request.message.sequence, None)

    def _on(self, leg: SessionStream) -> list[OpenRequest]:
        return [each for each in self._requests.values() if each.leg is leg]

    def _send(self, request: OpenRequest, leg: SessionStream) -> None:
        left_s = None if request.ends_at_s is None else request.ends_at_s - self._loop.time()
        is_elsewhere = not request.num_sent or leg.endpoint != request.leg.endpoint
        leg.send_nowait(request, self._replicas.silence_s(leg.connection, left_s))
        request.num_sent += is_elsewhere
        request.is_sent_again = not is_elsewhere
        for older in tuple(filter(request.supersedes, self._requests.values())):
            # A former server does not get the newer request, which would end the older one.
            older_leg = older.leg
            older_leg.discard_nowait(older.message.sequence)
            self._finish(older, pb.End(finish_reason=pb.FINISH_REASON_SUPERSEDED))
            self._legs.tidy(older_leg)

    def _resend(self, request: OpenRequest) -> bool:
        """Send a request that has no text on another leg instead; return whether there was one."""
        if request.has_text or request.is_cancelled:
            return False
        if request.ends_at_s is not None and self._loop.time() >= request.ends_at_s:
            return False
        before, leg = request.leg, self._legs.for_next()
        if leg is None or leg.last_sequence >= request.message.sequence:
            return False
        if leg.endpoint == before.endpoint and not before.is_quiet:
            return False
        try:
            self._send(request, leg)
        except ConnectionLostError:
            return False
        self._leave(request, before)
        return True

    def _leave(self, request: OpenRequest, leg: SessionStream) -> None:
        leg.discard_nowait(request.message.sequence)
        self._legs.tidy(leg)
