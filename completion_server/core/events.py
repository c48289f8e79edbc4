"""What the rooms report about a request, for whoever watches. Only the composition root decides who does."""

from dataclasses import dataclass
from typing import Protocol

from completion_server.core.errors import Code
from completion_server.core.outcome import End
from completion_server.core.request import Request


@dataclass(slots=True)
class Marks:
    """When a request passed each stage, in clock seconds; None where it did not come so far."""

    received: float
    admitted: float | None = None
    started: float | None = None
    """It got a slot."""
    prompted: float | None = None
    """Its prompt is token ids."""
    first_output: float | None = None
    last_output: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Feedback:
    """What became of a completion."""

    kind: str
    accepted_characters: int = 0
    survived_after_s: int = 0
    survived_share: float = 0.0


class Observer(Protocol):
    """Someone who watches requests. Must not wait, must not raise."""

    def request_ended(self, request: Request, end: End, marks: Marks) -> None:
        """A request that was taken in had its End."""
        ...

    def request_refused(self, code: Code) -> None:
        """A request or a session was not taken in."""
        ...

    def request_streamed(self, seconds: float) -> None:
        """A caller took the last event of a request this long after it was ready."""
        ...

    def generation_taken_over(self, num_tokens: int) -> None:
        """A user typed what was being generated: the newer request takes these tokens over instead of its own."""
        ...

    def generation_left(self, num_tokens: int) -> None:
        """A generation that was taken over went another way than its user; these tokens were for nobody."""
        ...

    def feedback_reported(self, feedback: Feedback) -> None:
        """An editor said what became of a completion."""
        ...

    def feedback_refused(self) -> None:
        """An editor's report could not be read."""
        ...
