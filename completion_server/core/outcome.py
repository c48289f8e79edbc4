"""What comes back: deltas of text, then exactly one end."""

from dataclasses import dataclass
from enum import Enum

from completion_server.core.errors import CompletionError


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    SUPERSEDED = "superseded"
    SHED = "shed"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    ERROR = "error"


class ShedReason(Enum):
    """Why a request was not attempted."""

    OVERLOAD = "overload"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    RATE_LIMITED = "rate_limited"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where a request's time went, in milliseconds; a stage that was not reached is 0."""

    queue_ms: float = 0.0
    tokenise_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why a request ended, before anyone has added up its tokens and times."""

    reason: FinishReason
    shed_reason: ShedReason | None = None
    retry_after_ms: int | None = None
    error: CompletionError | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Text to append, always whole characters."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The last event of a request."""

    outcome: Outcome
    usage: Usage = Usage()
    timings: Timings = Timings()
    text: str = ""
    """To append before the end, where the last text and the end came together."""


AnswerPart = Delta | End
"""An answer is any number of deltas and one End."""
