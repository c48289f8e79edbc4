"""Actions: the book decides them and the runner carries them out."""

from dataclasses import dataclass

from completion_server.core.outcome import FinishReason, Outcome


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a generation for a request, which holds a slot from now on."""

    id: str


@dataclass(frozen=True, slots=True)
class Reattach:
    """Have a request read the generation of an older one. The older request's Finish follows."""

    id: str
    from_id: str


@dataclass(frozen=True, slots=True)
class Join:
    """Have a request read the generation of another one, which asks for the same answer, from its beginning."""

    id: str
    leader_id: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give the slot of a request to another one, which reads its generation already. The request reads no more."""

    id: str
    from_id: str


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop the generation of a request; report `work_done` when it has stopped."""

    id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Report the end of a request to its caller. Each request has exactly one Finish."""

    id: str
    outcome: Outcome


Action = Start | Reattach | Join | HandOver | Abort | Finish

SUPERSEDED = Outcome(FinishReason.SUPERSEDED)
CANCELLED = Outcome(FinishReason.CANCELLED)
DEADLINE = Outcome(FinishReason.DEADLINE)
