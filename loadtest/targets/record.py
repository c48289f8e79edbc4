"""The record of one request: its events and their times. Knows no target and no figures."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from completion.v1.completion_pb2 import Timings
from loadtest.traffic.typed import TypedRequest

NOT_CONNECTED = "not connected"
"""The error of a request that was due while its session had no connection; it was not sent."""


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
    """The user had typed on: the client cancelled it, or no longer looks at it."""
    ERROR = "error"
    UNANSWERED = "unanswered"
    """Not ended when the run ended."""


WHOLE = (Outcome.ANSWERED, Outcome.EMPTY)


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
        if (delay_s := at_s - self.now_s()) > 0:
            await asyncio.sleep(delay_s)


@dataclass(slots=True, eq=False)
class Result:
    """A request with what became of it. Times are in seconds from the run's start."""

    request: TypedRequest
    sent_at_s: float = 0.0
    first_text_at_s: float | None = None
    """When the first visible text came; None without visible text."""
    ended_at_s: float | None = None
    """None until the request ends."""
    outcome: Outcome = Outcome.UNANSWERED
    completion_tokens: int = 0
    """Generated tokens, by the target's last report."""
    error: str = ""
    region: int | None = None
    """Index of the host that it was sent to last, where editors choose their host."""
    num_sent: int = 1
    """To how many hosts it was sent, one after another."""
    num_duplicates: int = 0
    """Ends beyond the first, and texts of a second host."""
    text: str = ""
    gaps_s: list[float] = field(default_factory=list)
    """The times between consecutive texts."""
    is_sent: bool = True
    """Whether the request was sent to a target."""
    num_messages: int = 0
    """Messages received, if the target counts them."""
    drafted_tokens: int = 0
    """Tokens that the draft model proposed, if reported."""
    accepted_tokens: int = 0
    """Of these, those that the target model accepted."""
    shed_reason: str | None = None
    cache_level: str = ""
    """The level of the target's completion cache that answered, "local" or "shared"; "" for a computed answer."""
    asks_edit: bool = False
    """Whether it asks for the next edit, which has no text."""
    has_edit: bool = False
    server: Timings | None = None
    """The server's timings of the request."""

    @property
    def lag_s(self) -> float:
        """How late the load generator sent the request."""
        return self.sent_at_s - self.request.intended_at_s

    @property
    def ttft_s(self) -> float | None:
        """Time from the intended time to the first visible text, for any outcome."""
        return None if self.first_text_at_s is None else self.first_text_at_s - self.request.intended_at_s

    @property
    def has_text(self) -> bool:
        """Whether visible text has come."""
        return self.first_text_at_s is not None

    @property
    def has_ended(self) -> bool:
        """Whether the request has ended."""
        return self.ended_at_s is not None


class Record(Result):
    """A request in progress, from when it is sent on; each event is noted here with its time."""

    __slots__ = ("_has_ended", "_last_text_at_s", "_on_end", "clock")

    def __init__(
        self, request: TypedRequest, clock: RunClock, on_end: "Callable[[Record], None] | None" = None
    ) -> None:
        """Note that a request is sent now; `on_end` is called once, when it ends."""
        super().__init__(request, clock.now_s())
        self.clock = clock
        self._on_end = on_end
        self._last_text_at_s: float | None = None
        self._has_ended: asyncio.Event | None = None

    def text_came(self, text: str) -> None:
        """Note text. Blanks are not visible text."""
        now_s = self.clock.now_s()
        if self._last_text_at_s is not None:
            self.gaps_s.append(now_s - self._last_text_at_s)
        self._last_text_at_s = now_s
        self.text += text
        if self.first_text_at_s is None and text.strip():
            self.first_text_at_s = now_s

    def edit_came(self) -> None:
        """Note the next edit, which a user sees as the first text of a completion."""
        self.has_edit = True
        self.first_text_at_s = self.clock.now_s()

    def routed(self, region: int, num_sent: int) -> None:
        """Note the host that an event of the request comes from, and to how many it was sent."""
        if self.text and region != self.region:
            self.num_duplicates += 1
        self.region, self.num_sent = region, num_sent

    def end(self, outcome: Outcome, error: str = "") -> None:
        """Note the outcome; only the first call counts."""
        if self.has_ended:
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
        if not self.has_ended:
            self._has_ended = self._has_ended or asyncio.Event()
            await self._has_ended.wait()
