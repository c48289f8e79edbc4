"""What a completion asks of prompts, and of the rules that read generated text."""

from typing import Protocol

from completion_server.core.next_edit import Edit
from completion_server.core.request import Request
from completion_server.text.prompt.builder import Prompt


class Prompts(Protocol):
    """Turns a request into token ids; may be called from several threads at once."""

    def build(self, request: Request) -> Prompt:
        """Return the prompt. Raises InvalidRequestError if it can't fit."""
        ...

    def expected_new_tokens(self, request: Request) -> int:
        """Return a cheap estimate of the prompt tokens that the engine will have to compute."""
        ...


class AnswerRules(Protocol):
    """Reads generated text: which part of it is sent, and when the answer ends."""

    @property
    def is_done(self) -> bool:
        """Whether a rule ended the answer."""
        ...

    @property
    def has_whole_line(self) -> bool:
        """Whether the answer goes on behind a line that is worth showing without the rest."""
        ...

    def feed(self, text: str, /) -> str:
        """Take new text and return the text that can be sent now."""
        ...

    def finish(self, *, is_cut: bool) -> str:
        """Return the withheld text that can be sent at the end; `is_cut` if a limit, of tokens or time, ended it."""
        ...


class EditRules(AnswerRules, Protocol):
    """Reads the answer to a request for the next edit, which has no text to send."""

    @property
    def edit(self) -> Edit | None:
        """The edit that the text means; None if there is nothing to change."""
        ...


class EditPrompts(Prompts, Protocol):
    """Prompts of a model that writes next edits."""

    def answer(self, request: Request, /) -> EditRules | None:
        """Return what reads the answer to a request; None if there is nothing that may change."""
        ...
