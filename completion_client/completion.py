"""The result of a request: its text, its end and its times as the client saw them."""

from dataclasses import dataclass

from completion.v1 import completion_pb2 as pb
from completion_client.errors import Limit, ServiceError, error_of_end

_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of a request. Times are milliseconds since the request was sent, by the client's clock."""

    text: str
    end: pb.End | None
    """The server's End; None if the call failed before it."""
    error: ServiceError | None
    """The failure of the call or of the request, if it failed."""
    text_times_ms: tuple[float, ...]
    """When each piece of text arrived."""
    total_ms: float
    address: str | None = None
    """The address of the server that answered a single call, if the caller named several."""
    num_sent: int = 1
    """To how many servers a single call was sent, one after another."""
    sequence: int = 0
    """The request's number in its session, for feedback; 0 for a call of `blocking`."""

    @property
    def finish_reason(self) -> str | None:
        """The finish reason's short name, such as "stop"; None without an End."""
        return None if self.end is None else _finish_reason_of(self.end)

    @property
    def shed_reason(self) -> str | None:
        """The shed reason's short name, such as "overload"; None if the request was not shed."""
        if self.end is None or self.end.shed_reason == pb.SHED_REASON_UNSPECIFIED:
            return None
        return pb.ShedReason.Name(self.end.shed_reason).removeprefix("SHED_REASON_").lower()

    @property
    def edit(self) -> pb.Edit | None:
        """The answer to a request for the next edit; None if there is nothing to change, or it is no such answer."""
        return self.end.edit if self.end is not None and self.end.HasField("edit") else None

    @property
    def cache_level(self) -> str | None:
        """The level of the server's completion cache that answered, "local" or "shared"; None if it was computed."""
        level = pb.CACHE_LEVEL_UNSPECIFIED if self.end is None else self.end.usage.cache_level
        if level in {pb.CACHE_LEVEL_UNSPECIFIED, pb.CACHE_LEVEL_NONE}:
            return None
        return pb.CacheLevel.Name(level).removeprefix("CACHE_LEVEL_").lower()

    @property
    def retry_after_ms(self) -> int | None:
        """Milliseconds until a retry, if the server gives a time."""
        if self.end is not None and self.end.HasField("retry_after_ms"):
            return self.end.retry_after_ms
        return self.error.retry_after_ms if self.error else None

    @property
    def limit(self) -> Limit | None:
        """The server's limit that the request exceeded, if it names one."""
        limit = Limit.of_end(self.end) if self.end is not None else None
        return self.error.limit if limit is None and self.error is not None else limit

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first piece of text; None without text."""
        return self.text_times_ms[0] if self.text_times_ms else None

    @property
    def tokens_per_s(self) -> float | None:
        """Decode rate: tokens after the first over the server's decode time; None with fewer than two tokens.

        Uses the server's clock, since text may be held back and then arrive all at once.
        """
        if self.end is None or self.end.usage.completion_tokens <= 1 or self.end.timings.decode_ms <= 0:
            return None
        return (self.end.usage.completion_tokens - 1) * _MS_PER_S / self.end.timings.decode_ms

    def raise_for_error(self) -> None:
        """Raise the error, if the call or the request failed."""
        if self.error is not None:
            raise self.error


class CompletionBuilder:
    """Collects the events of one request. Pure: the caller passes the time, in seconds of any monotonic clock."""

    __slots__ = ("_end", "_pieces", "_sent_s", "_text_times_ms")

    def __init__(self, sent_s: float) -> None:
        """Begin with the time at which the request was sent."""
        self._sent_s = sent_s
        self._pieces: list[str] = []
        self._text_times_ms: list[float] = []
        self._end: pb.End | None = None

    def add(self, event: pb.CompleteResponse, now_s: float) -> str:
        """Add an event; return its text, "" if it has none."""
        if event.HasField("end"):
            return self.add_end(event.end, now_s)
        return self.add_text(event.delta.text, now_s)

    def add_text(self, text: str, now_s: float) -> str:
        """Add a piece of text and return it."""
        if text:
            self._pieces.append(text)
            self._text_times_ms.append((now_s - self._sent_s) * _MS_PER_S)
        return text

    def add_end(self, end: pb.End, now_s: float) -> str:
        """Add the end; return the text that comes with it."""
        self._end = end
        return self.add_text(end.text, now_s)

    def build(self, now_s: float, error: ServiceError | None = None) -> Completion:
        """Return the result; `error` is the failure of the call, if it failed."""
        return Completion(
            text="".join(self._pieces),
            end=self._end,
            error=error or error_of_end(self._end),
            text_times_ms=tuple(self._text_times_ms),
            total_ms=(now_s - self._sent_s) * _MS_PER_S,
        )


def _finish_reason_of(end: pb.End) -> str:
    """Return the finish reason's short name, such as "stop"."""
    return pb.FinishReason.Name(end.finish_reason).removeprefix("FINISH_REASON_").lower()
