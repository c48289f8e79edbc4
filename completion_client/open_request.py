"""A request of a session on its way through the servers, and who hears what becomes of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from completion.v1 import completion_pb2 as pb
from completion_client.errors import ServiceError
from completion_client.request_fields import give_timeout
from completion_client.session_settings import RequestListener

if TYPE_CHECKING:
    from completion_client.session_stream import SessionStream


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that has no whole answer yet. It may be sent to another server until text has come."""

    message: pb.CompleteRequest
    listener: RequestListener
    ends_at_s: float | None
    """The loop's time at which the caller gives it up."""
    leg: "SessionStream"
    sent_at_s: float = 0.0
    num_sent: int = 0
    """Number of servers to which it was sent."""
    has_text: bool = False
    is_cancelled: bool = False
    is_sent_again: bool = False
    """Whether it was sent again to this server, after a failed write or with another token."""
    has_ended: bool = False
    """Whether the listener has got its last event, or gets it now."""

    def note_sent(self, now_s: float) -> None:
        """Note that it is sent; if that is not the first time, it has what is left of its timeout."""
        if self.sent_at_s and self.message.HasField("timeout_ms"):
            give_timeout(self.message, self.message.timeout_ms / 1000 - (now_s - self.sent_at_s))
        self.sent_at_s = now_s

    def supersedes(self, other: "OpenRequest") -> bool:
        """Return whether this makes another server's request useless. A server ends its own; prefetches go on."""
        is_older = other.message.sequence < self.message.sequence and other.leg.endpoint != self.leg.endpoint
        kinds = self.message.trigger, other.message.trigger
        return is_older and not (other.is_cancelled or other.has_ended) and pb.TRIGGER_PREFETCH not in kinds


class RequestOwner(Protocol):
    """Hears what becomes of the requests of a session."""

    def request_ended(self, request: OpenRequest, end: pb.End) -> None:
        """Take the end that a server sent."""
        ...

    def request_failed(self, request: OpenRequest, error: ServiceError) -> None:
        """Take the end of the stream of a request."""
        ...

    def leg_silent(self, leg: "SessionStream") -> float | None:
        """Take the silence of a server; return the loop's time at which it is given up, None for never."""
        ...
