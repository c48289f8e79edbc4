"""The parts of an answer: deltas of text, then exactly one End."""

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
    """Why a request was shed."""

    OVERLOAD = "overload"
    DEADLINE_UNREACHABLE = "deadline_unreachable"
    RATE_LIMITED = "rate_limited"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Duration of each stage of a request in milliseconds; 0 for a stage that was not reached."""

    queue_ms: float = 0.0
    tokenise_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why a request ended, without its token counts and times."""

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
    """The last part of an answer."""

    outcome: Outcome
    usage: Usage = Usage()
    timings: Timings = Timings()
    text: str = ""
    """Text to append before the end, if the last text and the end were ready together."""

    def with_text(self, text: str) -> "End":
        """Return the same end with text."""
        return End(self.outcome, self.usage, self.timings, text)


AnswerPart = Delta | End
"""An answer is any number of deltas and one End."""
