"""The record of one request: its events and their times. Knows no target and no figures."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from loadtest.traffic.trace import TypedRequest


class Outcome(Enum):
    """How a request ended."""

    ANSWERED = "answered"
    """Whole, with text that an editor can show."""
    EMPTY = "empty"
    """Whole, without such text."""
    CACHED = "cached"
    """The editor's cache had the answer; nothing was sent."""
    SUPERSEDED = "superseded"
    """The server dropped it for a newer request of the same user."""
    SHED = "shed"
    DEADLINE = "deadline"
    HUNG_UP = "hung_up"
    """The client cancelled it because the user had typed on."""
    ERROR = "error"
    UNANSWERED = "unanswered"
    """Not ended when the run ended."""


WHOLE = (Outcome.ANSWERED, Outcome.EMPTY)

NOT_CONNECTED = "not connected"
"""The error of a request that was due while its session had no connection; it was not sent."""


class RunClock:
    """Seconds since a run's start, by the event loop's monotonic clock."""

    def __init__(self, lead_s: float = 0.0) -> None:
        """Start the run `lead_s` from now."""
        self._loop = asyncio.get_running_loop()
        self._start = self._loop.time() + lead_s

    @classmethod
    def starting_at(cls, unix_time: float) -> "RunClock":
        """Return a clock that starts at a Unix time. The system clock is read once, now."""
        return cls(unix_time - time.time())

    def now_s(self) -> float:
        """Return the time in the run."""
        return self._loop.time() - self._start

    def loop_time(self, at_s: float) -> float:
        """Convert a time in the run to the event loop's time."""
        return self._start + at_s

    async def sleep_until(self, at_s: float) -> None:
        """Wait for a time; return at once if it is past."""
        delay_s = at_s - self.now_s()
        if delay_s > 0:
            await asyncio.sleep(delay_s)


@dataclass(frozen=True, slots=True)
class Stages:
    """The server's timings of a request, in milliseconds."""

    queue_ms: float
    tokenise_ms: float
    prefill_ms: float
    decode_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a request. Times are in seconds from the run's start."""

    request: TypedRequest
    sent_at_s: float
    first_text_at_s: float | None
    """When the first visible text came; None without visible text."""
    ended_at_s: float | None
    outcome: Outcome
    completion_tokens: int
    """Generated tokens, by the target's last report."""
    error: str = ""
    region: int | None = None
    """Index of the host that it was sent to last, where editors choose their host."""
    num_sent: int = 1
    """To how many hosts it was sent, one after another."""
    num_duplicates: int = 0
    """Ends beyond the first, and texts of a second host."""

    @property
    def lag_s(self) -> float:
        """How late the load generator sent the request."""
        return self.sent_at_s - self.request.intended_at_s

    @property
    def ttft_s(self) -> float | None:
        """Time from the intended time to the first visible text, for any outcome."""
        return None if self.first_text_at_s is None else self.first_text_at_s - self.request.intended_at_s


class Record:
    """A request in progress; each event is noted here with its time."""

    __slots__ = (
        "_has_ended", "_last_text_at_s", "_on_end", "accepted_tokens", "cache_level", "clock", "completion_tokens",
        "drafted_tokens", "ended_at_s", "error", "first_text_at_s", "gaps_s", "is_sent", "num_duplicates",
        "num_messages", "num_sent", "outcome", "region", "request", "sent_at_s", "server", "shed_reason", "text",
    )  # fmt: skip

    def __init__(
        self, request: TypedRequest, clock: RunClock, on_end: "Callable[[Record], None] | None" = None
    ) -> None:
        """Start the record when the request is sent; `on_end` is called once, when it ends."""
        self.request = request
        self.clock = clock
        self.text = ""
        self.gaps_s: list[float] = []
        """The times between consecutive texts."""
        self.is_sent = True
        """Whether the request was sent to a target."""
        self.num_messages = 0
        """Messages received, if the target counts them."""
        self.completion_tokens = 0
        self.drafted_tokens = 0
        """Tokens that the draft model proposed, if the target reports them."""
        self.accepted_tokens = 0
        """Of these, tokens that the target model accepted."""
        self.error = ""
        self.region: int | None = None
        """See Result, as the next two."""
        self.num_sent = 1
        self.num_duplicates = 0
        self.shed_reason = ""
        self.cache_level = ""
        """The level of the target's completion cache that answered, "local" or "shared"; "" for a computed answer."""
        self.server: Stages | None = None
        self.sent_at_s = clock.now_s()
        self.first_text_at_s: float | None = None
        self._last_text_at_s: float | None = None
        self.ended_at_s: float | None = None
        self.outcome: Outcome | None = None
        """None until the request ends."""
        self._on_end = on_end
        self._has_ended: asyncio.Event | None = None

    @property
    def has_text(self) -> bool:
        """Whether visible text has come."""
        return self.first_text_at_s is not None

    def text_came(self, text: str) -> None:
        """Note text. Blanks are not visible text."""
        now_s = self.clock.now_s()
        if self._last_text_at_s is not None:
            self.gaps_s.append(now_s - self._last_text_at_s)
        self._last_text_at_s = now_s
        self.text += text
        if self.first_text_at_s is None and text.strip():
            self.first_text_at_s = now_s

    def routed(self, region: int, num_sent: int) -> None:
        """Note the host that an event of the request comes from, and to how many it was sent."""
        if self.text and region != self.region:
            self.num_duplicates += 1
        self.region, self.num_sent = region, num_sent

    def count_tokens(self, completion_tokens: int) -> None:
        """Note the number of generated tokens."""
        self.completion_tokens = completion_tokens

    def count_drafts(self, drafted_tokens: int, accepted_tokens: int) -> None:
        """Note the numbers of draft tokens."""
        self.drafted_tokens, self.accepted_tokens = drafted_tokens, accepted_tokens

    def stages(self, stages: Stages) -> None:
        """Note the server's timings."""
        self.server = stages

    def end(self, outcome: Outcome, error: str = "") -> None:
        """Note the outcome; only the first call counts."""
        if self.outcome is not None:
            return
        self.outcome, self.error = outcome, error
        self.ended_at_s = self.clock.now_s()
        if self._has_ended is not None:
            self._has_ended.set()
        if self._on_end is not None:
            self._on_end(self)

    def end_whole(self) -> None:
        """Note that the completion is whole."""
        self.end(Outcome.ANSWERED if self.has_text else Outcome.EMPTY)

    def end_unsent(self, error: str) -> None:
        """Note that the request could not be sent."""
        self.is_sent = False
        self.end(Outcome.ERROR, error)

    def end_from_cache(self, text: str) -> None:
        """Note that the editor's cache had the answer."""
        self.is_sent = False
        self.text = text
        self.first_text_at_s = self.request.intended_at_s
        self.end(Outcome.CACHED)

    async def wait_ended(self) -> None:
        """Wait until the request ends."""
        if self.outcome is None:
            if self._has_ended is None:
                self._has_ended = asyncio.Event()
            await self._has_ended.wait()

    def result(self) -> Result:
        """Return the result as it is now."""
        return Result(
            request=self.request,
            sent_at_s=self.sent_at_s,
            first_text_at_s=self.first_text_at_s,
            ended_at_s=self.ended_at_s,
            outcome=self.outcome or Outcome.UNANSWERED,
            completion_tokens=self.completion_tokens,
            error=self.error,
            region=self.region,
            num_sent=self.num_sent,
            num_duplicates=self.num_duplicates,
        )
