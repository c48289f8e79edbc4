"""One kept completion, and the decision whether it answers a request. Pure.

A completion is found by an anchor: a place shortly before the cursor, most often the start of its line. The name of the
anchor covers all text before it; the text between the anchor and the cursor, the tail, is compared here. So a user who
types along, or deletes and types again, finds the same completions.
"""

from dataclasses import dataclass, replace

from completion_server.core.outcome import FinishReason
from completion_server.core.request import Mode, Request

_LINE_BREAKS = ("\n", "\r")


@dataclass(frozen=True, slots=True)
class Entry:
    """A completion that was computed whole."""

    tail: str
    """The text between the anchor and the cursor for which it was computed."""
    text: str
    """The completion, after the text rules."""
    reason: FinishReason
    """STOP or LENGTH."""
    made_at: float
    """Unix seconds."""
    num_prompt_tokens: int
    num_completion_tokens: int
    engine_s: float
    """Seconds of prefill and decode."""

    def after(self, tail: str, terms: "Terms") -> "Entry | None":
        """Return the part of the completion behind a request's tail, with its share of the cost; None if it has none.

        The text that was typed since must be the beginning of the completion. Something of the completion must be
        left, and half of it if the token limit ended it: the rest alone would end too soon.
        """
        if not tail.startswith(self.tail):
            return None
        num_typed = len(tail) - len(self.tail)
        if not num_typed:
            return self
        typed, left = tail[len(self.tail) :], self.text[num_typed:]
        if terms.is_exact or not left or not self.text.startswith(typed):
            return None
        if terms.is_single_line and any(each in typed for each in _LINE_BREAKS):
            return None
        if self.reason is FinishReason.LENGTH and 2 * len(left) < len(self.text):
            return None
        share = len(left) / len(self.text)
        num_tokens, engine_s = round(self.num_completion_tokens * share), self.engine_s * share
        return replace(self, tail=tail, text=left, num_completion_tokens=num_tokens, engine_s=engine_s)


@dataclass(frozen=True, slots=True)
class Terms:
    """The part of a request that decides how far along a completion may be typed."""

    is_single_line: bool = False
    """Whether the completion ends with the line, so that it serves no request behind it."""
    is_exact: bool = False
    """Whether the completion is a sample, which its seed repeats only from the same cursor on."""

    @classmethod
    def of(cls, request: Request) -> "Terms":
        """Return the terms of a request."""
        return cls(request.mode is Mode.SINGLE_LINE, bool(request.sampling.temperature))
