"""The settings of the policy, with the defaults. editors/policy_cases.json has the same numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EditingSettings:
    """When an editor's client asks and what it remembers. Times are in milliseconds."""

    fast_share: float = 0.6
    """The server is fast if its usual time to the first text is at most so much of the usual time between keys."""
    delay_min_ms: float = 0
    """The wait between a key and its request if the server is fast: the text can be there before the next key."""
    delay_factor: float = 1.0
    """The wait if it is not, in usual times between keys: the text can be there only if the user pauses."""
    delay_max_ms: float = 400
    """The longest wait."""
    gap_ms: float = 170
    """The time between keys that is assumed of a user who has typed little."""
    gap_max_ms: float = 1000
    """A longer time between keys is a pause and no sample of the rhythm."""
    num_gaps: int = 16
    """The usual time between keys is the median of so many."""
    ttft_ms: float = 100
    """The time from a request to its first text that is assumed before the first answer."""
    num_ttfts: int = 8
    """The usual time to the first text is the median of so many."""
    shed_ms: float = 1000
    """How long nothing is asked after a request that was shed or failed, if the server names no time."""
    num_answers: int = 64
    """Answers that are remembered, at least 1."""
    num_rejections: int = 16
    """Places that are remembered as rejected; 0 remembers none."""
    context_chars: int = 2000
    """Two places are the same if their documents are as long and so many characters on each side are equal."""
    types_along: bool = True
    """Whether an answer is still of use when a part of it was typed."""
    follows_rhythm: bool = True
    """Whether the wait follows the user and the server. If not, it is `delay_min_ms`."""
    cancels: bool = True
    """Whether a request is cancelled at the key that contradicts it. If not, the next request supersedes it."""
    prefetches: bool = True
    """Whether the next text is asked for at once after an acceptance."""
    minds_line: bool = True
    """Whether nothing is asked in the middle of a line with text that no completion can join."""


@dataclass(frozen=True, slots=True)
class SnippetSettings:
    """What snippets of other places are kept and sent."""

    num_chunks: int = 16
    """Places that are remembered."""
    chunk_lines: int = 48
    """Most lines of a place."""
    same_share: float = 0.8
    """A place replaces a remembered one if so much of their words is the same."""
    budget_chars: int = 6000
    """Characters of all snippets of a request."""
    min_score: float = 0.05
    """Least share of common words with the text around the cursor."""
    window_lines: int = 24
    """Lines before the cursor that snippets are compared with."""
    keep_lines: int = 24
    """The choice stays until the cursor is so many lines away from where it was made, so that prompts stay alike."""


@dataclass(frozen=True, slots=True)
class NextEditSettings:
    """When the next edit is asked for."""

    pause_ms: float = 300
    """The time after a change, and after a completion, in which nothing must happen before an edit is asked for."""
    shed_ms: float = 1000
    """How long no edit is asked for after a request that was shed or failed, if the server names no time."""
    near_lines: int = 8
    """An answer is that of all cursors in the same text so many lines before and after its own."""
    num_rejections: int = 16
    """Edits that are remembered as rejected; 0 remembers none."""


@dataclass(frozen=True, slots=True)
class RecentEditSettings:
    """What edits of the user are kept and sent."""

    num_edits: int = 8
    """Edits that are remembered, at least 1."""
    merge_ms: float = 5000
    """A change belongs to the last edit if it comes no later,"""
    merge_lines: int = 4
    """with at most so many lines between them."""
    context_lines: int = 3
    """Unchanged lines on each side."""
    budget_bytes: int = 8000
    """Bytes of all diffs of a request. A larger edit alone is not kept."""
