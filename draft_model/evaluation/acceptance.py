"""Computes how much of a draft the target accepts, offline from the text that the target writes. Pure functions.

A greedy draft of K tokens is accepted up to its first token that the target would not have written. If the first j-1
tokens are accepted, the draft's j-th token is its prediction behind the same text: one pass of the draft over the
target's text gives every draft of every length.

A step yields the accepted tokens and one of the target's own, so the next draft starts behind that one. A draft that
runs over the end of the completion counts whole, as in the engine, which verifies it before it sees the end. This needs
the text that the target would write behind the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True)
class AcceptanceCounts:
    """Counts of drafts of at most K tokens: all drafts, and those with their first, second, ... token accepted."""

    num_drafts: int
    accepted_at: tuple[int, ...]

    def __add__(self, other: "AcceptanceCounts") -> "AcceptanceCounts":
        """Add the counts of drafts with the same K."""
        pairs = zip(self.accepted_at, other.accepted_at, strict=True)
        return AcceptanceCounts(self.num_drafts + other.num_drafts, tuple(left + right for left, right in pairs))

    @property
    def num_speculative_tokens(self) -> int:
        """K."""
        return len(self.accepted_at)

    @property
    def per_token(self) -> float:
        """Accepted tokens over drafted tokens."""
        drafted = self.num_drafts * self.num_speculative_tokens
        return sum(self.accepted_at) / drafted if drafted else 0.0

    @property
    def per_position(self) -> tuple[float, ...]:
        """The share of drafts that were accepted up to each position."""
        return tuple(count / self.num_drafts if self.num_drafts else 0.0 for count in self.accepted_at)

    @property
    def mean_length(self) -> float:
        """Mean tokens of a step, including the target's own."""
        return 1.0 + (sum(self.accepted_at) / self.num_drafts if self.num_drafts else 0.0)


def replay(matches: Sequence[bool], num_speculative_tokens: int, num_tokens: int | None = None) -> AcceptanceCounts:
    """Speculate over one completion of `num_tokens` tokens, all of `matches` when not given.

    `matches[i]` says whether the draft predicts token i from those before it. Matches past the completion's end are for
    the text that the target would write there. The first token comes with the prompt's own step, without a draft.
    """
    accepted = [0] * num_speculative_tokens
    drafts, at = 0, 1
    while at < (len(matches) if num_tokens is None else num_tokens):
        drafts += 1
        length = 0
        while length < num_speculative_tokens and at + length < len(matches) and matches[at + length]:
            accepted[length] += 1
            length += 1
        at += length + 1
    return AcceptanceCounts(drafts, tuple(accepted))


def share_interval(hits: Sequence[int], totals: Sequence[int]) -> tuple[float, float]:
    """The 95% interval of a share whose trials come in groups: the tokens of a completion are one draw.

    By the variance of a ratio of sums over groups (Cochran, "Sampling Techniques", 1977, section 6.3); 0 to 1 for fewer
    than two groups.
    """
    total, num_groups = sum(totals), len(totals)
    if not total or num_groups < 2:  # noqa: PLR2004
        return 0.0, 1.0
    share = sum(hits) / total
    squares = sum((hit - share * of) ** 2 for hit, of in zip(hits, totals, strict=True))
    width = 1.96 * sqrt(squares * num_groups / (num_groups - 1)) / total
    return max(0.0, share - width), min(1.0, share + width)


def expected_tokens(acceptance: float, num_speculative_tokens: int) -> float:
    """Expected tokens of a step if each drafted token is accepted with probability a: (1 - a^(K+1)) / (1 - a).

    Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), equation 1.
    """
    if acceptance >= 1.0:
        return float(num_speculative_tokens + 1)
    return (1.0 - acceptance ** (num_speculative_tokens + 1)) / (1.0 - acceptance)


def expected_speedup(acceptance: float, num_speculative_tokens: int, draft_step_share: float) -> float:
    """Expected factor on tokens a second; `draft_step_share` is the draft's step over the target's (theorem 3.8)."""
    return expected_tokens(acceptance, num_speculative_tokens) / (num_speculative_tokens * draft_step_share + 1.0)
