"""How a prompt's budget is spent."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_RANGES = (
    ("max_prompt_tokens", 16, 1_000_000),
    ("suffix_share", 0.0, 0.4),
    ("snippet_share", 0.0, 0.4),
    ("window_step", 0.05, 0.4),
    ("max_recent_tokens", 0, 1_000_000),
    ("snippet_max_age_s", 0.0, math.inf),
    ("documents_mib", 1, 1_000_000),
)


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """The `[prompt]` section. Shares are of the token budget, 0 to 1."""

    max_prompt_tokens: int = 2048
    """Budget of a prompt, in tokens; what the model can hold less the completion bounds it too."""
    template: str = ""
    """A family's name, such as "qwen"; "" finds it from the tokenizer's special tokens."""
    template_fields: Mapping[str, str] = field(default_factory=dict)
    """Fields of the template to replace, such as prefix = "<PRE>"."""
    suffix_share: float = 0.25
    """At most this much for the text right of the cursor."""
    snippet_share: float = 0.2
    """At most this much for text from elsewhere."""
    window_step: float = 0.2
    """A window that must move does so by one to two of these: shares of what the text left of the cursor may take."""
    max_recent_tokens: int = 96
    """Whole lines that may stand between the middle marker and the cursor's line before the marker moves."""
    snippet_max_age_s: float = 30.0
    """Changed snippets replace those in the prompt after this long, or when the window moves. A snippet that the
    request no longer offers leaves the prompt at once."""
    preamble: str = ""
    """Text put first in every prompt, best as a comment in no particular language; shared by all users."""
    documents_mib: int = 128
    """Memory for what is known of the documents being edited, in MiB; about 15 KiB for each at 1,024 tokens. The least
    recently used are forgotten first."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        for name, low, high in _RANGES:
            if not low <= getattr(self, name) <= high:
                msg = f"{name}: must be {low} to {high}, got {getattr(self, name)}"
                raise ValueError(msg)
