"""Actions: the book decides them and the runner carries them out."""

from dataclasses import dataclass, field

from completion_server.core.events import Event
from completion_server.core.immutable import immutable
from completion_server.core.outcome import FinishReason, Outcome, Usage


@immutable
class Start:
    """Begin a generation with the prompt of a request. The generation has the request's id and holds a slot now."""

    id: str


@immutable
class Reattach:
    """A request reads the generation of an older one of its user, from after the text typed since."""

    id: str
    generation_id: str
    num_tokens: int = 0
    """Tokens generated so far."""
    text: str = ""
    """The text generated so far that the user has not typed."""


@immutable
class Join:
    """A request reads the generation of another one, which asks for the same answer, from its beginning."""

    id: str
    generation_id: str
    num_tokens: int = 0
    """Tokens generated so far."""
    text: str = ""
    """The text generated so far."""


@dataclass(slots=True)
class Text:
    """Give a request new text. Its answer may be complete with that; report it with `answered` then."""

    id: str
    text: str
    finish: FinishReason | None = None
    """The end of the generation, None if it continues."""


@immutable
class Abort:
    """Stop a generation, which no request needs any more; report `stopped` when it has stopped."""

    id: str


@immutable
class Finish:
    """Report the end of a request to its caller. Each request has exactly one Finish."""

    id: str
    outcome: Outcome
    usage: Usage = field(default_factory=Usage, compare=False)
    """The cost of the generation that it read. The request that leads the generation counts the tokens."""


@immutable
class Report:
    """Emit an event."""

    event: Event


Action = Start | Reattach | Join | Text | Abort | Finish | Report

SUPERSEDED = Outcome(FinishReason.SUPERSEDED)
CANCELLED = Outcome(FinishReason.CANCELLED)
DEADLINE = Outcome(FinishReason.DEADLINE)
