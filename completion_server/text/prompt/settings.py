"""Settings of the prompt: its budget, its template, and the memory for documents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from completion_server.core.checks import Between, require_bounds

MOST_PROMPT_TOKENS = 2048
LEAST_PROMPT_TOKENS = 16
LEAST_MEASURED_TOKENS = 384
"""A shorter prompt says too little of a file, however slow the machine is: a key computes only a few tokens anew."""


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """The `[prompt]` section."""

    max_prompt_tokens: Annotated[int, Between(0, 1_000_000)] = MOST_PROMPT_TOKENS
    """Budget of a prompt, in tokens; 0 takes what vLLM computes within shed.budget_ms, measured at each start, from 384
    to 2048. The model's context less the completion is a second limit."""
    template: str = ""
    """A family's name, such as "qwen"; "" detects it from the tokenizer's special tokens."""
    template_fields: Mapping[str, str | int] = field(default_factory=dict)
    """Fields of the template to replace, such as prefix = "<PRE>" or lines_behind = 1."""
    token_healing: bool = True
    """Whether a prompt leaves out the word that the cursor stands in or behind, with which the answer must then begin.
    Without it a model continues a word as if it were whole."""
    preamble: str = ""
    """Text put first in every prompt, best as a comment in no particular language; the same for all users."""
    next_edit_template: str = ""
    """Form of prompts for next edits: "zeta-2", "zeta-2.1", "sweep" or "instinct". "" takes the one that the model's
    name tells; a model of another name writes no next edits."""
    next_edit_instructions: str = ""
    """First message of Instinct's chat, as it was trained with. "" takes a short one of the server's own."""
    snippet_share: ClassVar[float] = 0.2
    """Largest share of the budget for snippets of other files."""
    documents_mib: ClassVar[int] = 128
    """Memory for the documents being edited, the least recently used of which go first; about 15 KiB for each."""

    def __post_init__(self) -> None:
        """Refuse values that can't work."""
        require_bounds(self)
        if 0 < self.max_prompt_tokens < LEAST_PROMPT_TOKENS:
            msg = f"max_prompt_tokens: must be 0 or at least {LEAST_PROMPT_TOKENS}, got {self.max_prompt_tokens}"
            raise ValueError(msg)

    def measured_budget(self, num_in_time: int) -> int:
        """Return the budget of a prompt on a machine that computes `num_in_time` tokens in the time of a first word."""
        return self.max_prompt_tokens or max(LEAST_MEASURED_TOKENS, min(num_in_time, MOST_PROMPT_TOKENS))
