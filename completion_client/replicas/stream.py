"""A session's stream over several servers: goes to the best one at each request, and leaves one that fails."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from completion.v1 import completion_pb2 as pb
from completion_client.endpoint import Endpoint, Metadata
from completion_client.errors import ConnectionLostError, ServiceError
from completion_client.replicas.leg import Leg
from completion_client.replicas.legs import Legs
from completion_client.replicas.reports import FeedbackCalls
from completion_client.replicas.view import OnMove, Replicas
from completion_client.request_fields import give_timeout
from completion_client.session_settings import RequestListener, SessionSettings, StreamListener

KEPT_S = 900.0
"""Servers take feedback on an answer for as long."""
_MAX_ANSWERS = 1024


class Route(NamedTuple):
    """The server that has a request of a session, or that answered it."""

    endpoint: Endpoint
    num_sent: int
    """Number of servers to which the request was sent, one after another."""


@dataclass(slots=True)
class RoutedRequest:
    """A request of a session, which may be sent to another server until text has come. Also its RequestListener."""

    owner: "ReplicaStream"
    message: pb.CompleteRequest
    listener: RequestListener
    leg: Leg
    ends_at_s: float | None
    """The loop's time at which the caller gives it up."""
    sent_at_s: float = 0.0
    num_sent: int = 0
    has_text: bool = False
    is_cancelled: bool = False
    has_ended: bool = False
    """Whether the listener has got its last event, or gets it now."""

    def supersedes(self, other: "RoutedRequest") -> bool:
        """Return whether this makes another server's request useless. A server ends its own; prefetches go on."""
        is_older = other.message.sequence < self.message.sequence and other.leg.endpoint != self.leg.endpoint
        kinds = self.message.trigger, other.message.trigger
        return is_older and not (other.is_cancelled or other.has_ended) and pb.TRIGGER_PREFETCH not in kinds

    def on_text(self, text: str) -> None:
        """See RequestListener."""
        self.leg.heard_nowait()
        self.has_text = True
        self.listener.on_text(text)

    def on_end(self, end: pb.End) -> None:
        """See RequestListener."""
        self.leg.heard_nowait()
        self.owner.request_ended(self, end)

    def on_error(self, error: ServiceError) -> None:
        """See RequestListener."""
        self.owner.request_failed(self, error)


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
        self._legs = Legs(replicas, metadata, settings or SessionSettings(), listener, on_move, self._leg_silent)
        self._feedback = FeedbackCalls(replicas, metadata)
        self._loop = asyncio.get_running_loop()
        self._requests: dict[int, RoutedRequest] = {}
        self._answered = AnsweredRequests()
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

        Raises:
            ConnectionLostError: the files of none can be read.

        """
        if self._legs.for_next() is None:
            self._legs.open(self._replicas.best())

    def send_nowait(
        self, request: pb.CompleteRequest, listener: RequestListener, timeout_s: float | None = None
    ) -> None:
        """Send a request whose sequence number is higher than those before it.

        `timeout_s` is how long the caller waits: a share of it is for each of several servers.

        Raises:
            ValueError: the number is not above 0 and above those before it; a server would not answer it.
            ConnectionLostError: no server can be used.

        """
        leg = self._legs.for_next()
        if leg is None:
            raise ConnectionLostError(self._replicas.why_none())
        if request.sequence <= self._last_sequence:
            msg = f"sequence: must be above {self._last_sequence}, was {request.sequence}"
            raise ValueError(msg)
        ends_at_s = None if timeout_s is None else self._loop.time() + timeout_s
        self._last_sequence = request.sequence
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
            self._legs.tidy(request.leg)

    def report_nowait(self, feedback: pb.ReportFeedbackRequest) -> None:
        """Send feedback to the server that answered: in a call of its own unless a stream to that server is open."""
        answered_by = self._answered.endpoint(feedback.sequence, self._loop.time())
        endpoint = answered_by if self._replicas.has_choice else self.endpoint
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

    def request_ended(self, request: RoutedRequest, end: pb.End) -> None:
        """Take the end that a server sent."""
        leg = request.leg
        self._legs.note_answer(leg)
        may_retry = self._replicas.note_end(leg.connection, end, self._loop.time() - request.sent_at_s)
        if not (may_retry and not end.text and self._resend(request)):
            if request.has_text or end.text:
                self._answered.add(request.message.sequence, leg.endpoint, self._loop.time())
            self._finish(request, end)
        self._legs.tidy(leg)

    def request_failed(self, request: RoutedRequest, error: ServiceError) -> None:
        """Take the loss of the leg of a request."""
        if self._requests.get(request.message.sequence) is not request:
            return  # a listener of the same leg sent a newer one elsewhere
        if request.leg.may_retry and self._resend(request):
            return
        self._finish(request, error)

    def _finish(self, request: RoutedRequest, last: pb.End | ServiceError) -> None:
        """Give the listener its last event; the request has its route until then."""
        request.has_ended = True
        if isinstance(last, ServiceError):
            request.listener.on_error(last)
        else:
            request.listener.on_end(last)
        self._requests.pop(request.message.sequence, None)

    def _leg_silent(self, leg: Leg) -> float | None:
        """Send requests without text to another server; return until when the others wait, None if there is none.

        The server may have stalled, so they wait until their deadlines: they can't be sent elsewhere.
        """
        for request in self._on(leg):
            if request.message.sequence in self._requests:  # else a newer one has superseded it
                self._resend(request)
        now_s = self._loop.time()
        ends_at_s = [now_s if each.ends_at_s is None else each.ends_at_s for each in self._on(leg)]
        return max(ends_at_s) + self._replicas.regions.settings.silence_max_s if ends_at_s else None

    def _on(self, leg: Leg) -> list[RoutedRequest]:
        return [each for each in self._requests.values() if each.leg is leg]

    def _send(self, request: RoutedRequest, leg: Leg) -> None:
        now_s = self._loop.time()
        if request.num_sent and request.message.HasField("timeout_ms"):
            give_timeout(request.message, request.message.timeout_ms / 1000 - (now_s - request.sent_at_s))
        left_s = None if request.ends_at_s is None else request.ends_at_s - now_s
        leg.send_nowait(request.message, request, self._replicas.silence_s(leg.connection, left_s))
        request.leg, request.sent_at_s = leg, now_s
        request.num_sent += 1
        for older in tuple(filter(request.supersedes, self._requests.values())):
            self._supersede(older)

    def _supersede(self, request: RoutedRequest) -> None:
        """Cancel and end a request on a former server, which does not get the newer one."""
        request.leg.discard_nowait(request.message.sequence)
        self._finish(request, pb.End(finish_reason=pb.FINISH_REASON_SUPERSEDED))
        self._legs.tidy(request.leg)

    def _resend(self, request: RoutedRequest) -> bool:
        """Send a request that has no text to another server instead; return whether there was one."""
        if request.has_text or request.is_cancelled:
            return False
        if request.ends_at_s is not None and self._loop.time() >= request.ends_at_s:
            return False
        before, leg = request.leg, self._legs.for_next()
        if leg is None or leg.endpoint == before.endpoint or leg.last_sequence >= request.message.sequence:
            return False
        try:
            self._send(request, leg)
        except ConnectionLostError:
            return False
        before.discard_nowait(request.message.sequence)
        self._legs.tidy(before)
        return True


@dataclass(slots=True)
class AnsweredRequests:
    """Remembers the servers of the newest answers with text, each for `KEPT_S`."""

    max_answers: int = _MAX_ANSWERS
    _answers: OrderedDict[int, tuple[Endpoint, float]] = field(default_factory=OrderedDict)

    def add(self, sequence: int, endpoint: Endpoint, now_s: float) -> None:
        """Remember the server that answered a request, and forget what is too old or too much."""
        self._answers[sequence] = endpoint, now_s
        while len(self._answers) > self.max_answers or now_s - self._oldest_s() >= KEPT_S:
            self._answers.popitem(last=False)

    def endpoint(self, sequence: int, now_s: float) -> Endpoint | None:
        """Return the server that answered a request; None if that is not known any more."""
        endpoint, answered_at_s = self._answers.get(sequence, (None, now_s))
        return endpoint if now_s - answered_at_s < KEPT_S else None

    def _oldest_s(self) -> float:
        return next(iter(self._answers.values()))[1]
