"""The parts of an answer: deltas of text, then exactly one End."""

from enum import Enum

from completion_server.core.errors import CompletionError, Limit
from completion_server.core.immutable import immutable
from completion_server.core.next_edit import Edit


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


class CacheLevel(Enum):
    """The level of the completion cache that an answer came from."""

    NONE = "none"
    """It was computed, or there is no answer."""
    LOCAL = "local"
    """The memory of this process."""
    SHARED = "shared"
    """Redis, which replicas share."""


@immutable
class Usage:
    """Tokens computed for a request. An answer from the completion cache needs none; `of_answer` counts its own."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    is_shared: bool = False
    """Whether the usage of another request counts the same tokens, because one generation answered both."""
    cache_level: CacheLevel = CacheLevel.NONE
    kept_prompt_tokens: int = 0
    """Tokens of the prompt of an answer from the completion cache."""
    kept_completion_tokens: int = 0
    """Tokens of that answer's text."""

    @property
    def of_answer(self) -> "Usage":
        """The tokens of the prompt and of the text, also if an earlier request computed them."""
        if self.cache_level is CacheLevel.NONE:
            return self
        prompt, completion = self.kept_prompt_tokens, self.kept_completion_tokens
        return Usage(prompt, prompt, completion, cache_level=self.cache_level)

    @property
    def counted_prompt_tokens(self) -> int:
        """The prompt's tokens; 0 without output, because the share that the prefix cache had is not known then."""
        return self.prompt_tokens if self.completion_tokens else 0


@immutable
class Timings:
    """Duration of each stage of a request in milliseconds; 0 for a stage that was not reached."""

    queue_ms: float = 0.0
    tokenise_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0


@immutable
class Outcome:
    """Why a request ended, without its token counts and times."""

    reason: FinishReason
    shed_reason: ShedReason | None = None
    retry_after_ms: int | None = None
    error: CompletionError | None = None
    limit: Limit | None = None
    """The limit that it was shed for."""


SUPERSEDED = Outcome(FinishReason.SUPERSEDED)
CANCELLED = Outcome(FinishReason.CANCELLED)
DEADLINE = Outcome(FinishReason.DEADLINE)
INTERNAL_ERROR = Outcome(FinishReason.ERROR, error=CompletionError("internal error; the server's log has more"))


@immutable
class CachedAnswer:
    """An answer from the completion cache. It needs no text rules: they were applied when it was computed."""

    text: str
    reason: FinishReason
    """STOP or LENGTH."""
    level: CacheLevel
    num_prompt_tokens: int
    """Of the request that it was computed for."""
    num_completion_tokens: int
    """Of its text."""


@immutable
class FinishedAnswer:
    """An answer that was computed whole, and its cost: what the completion cache keeps."""

    text: str
    """The text that was sent."""
    reason: FinishReason
    """STOP or LENGTH."""
    num_typed: int
    """Characters at the end of the request's prefix that were generated, too: the user typed them, and the request
    reattached to the generation."""
    num_prompt_tokens: int
    num_completion_tokens: int
    engine_s: float
    """Seconds of prefill and decode."""


@immutable
class Delta:
    """Text to append, always whole characters."""

    text: str


@immutable
class End:
    """The last part of an answer."""

    outcome: Outcome
    usage: Usage = Usage()
    timings: Timings = Timings()
    text: str = ""
    """Text to append before the end, if the last text and the end were ready together."""
    edit: Edit | None = None
    """The next edit; None if there is nothing to change, or the request asked for a completion."""

    def with_text(self, text: str) -> "End":
        """Return the same end with text."""
        return End(self.outcome, self.usage, self.timings, text, self.edit)


AnswerPart = Delta | End
"""An answer is any number of deltas and one End."""


@immutable
class ServedAnswer:
    """How an answer with text was served, so that its user's reaction can be compared with that."""

    ttft_s: float
    num_speculative_tokens: int | None
    """The active K at its end; None if it came from the completion cache."""
    cache_level: CacheLevel = CacheLevel.NONE


class Reaction(Enum):
    """How far a completion came with its user. A later reaction implies the earlier ones."""

    SHOWN = "shown"
    ACCEPTED = "accepted"
    """In whole or in part."""
    SURVIVED = "survived"
    """Most of the accepted text was still there after 30 s or more."""
