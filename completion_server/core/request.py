"""A completion request after the wire was checked: what every room below rpc works on."""

from dataclasses import dataclass
from enum import Enum, IntEnum

from completion_server.core.clock import NEVER, Deadline


class Trigger(IntEnum):
    """What made the editor ask; the smaller value is served first."""

    EXPLICIT = 0
    AUTOMATIC = 1
    PREFETCH = 2


class Mode(Enum):
    """How much text the editor can show."""

    SINGLE_LINE = "single_line"
    MULTI_LINE = "multi_line"


@dataclass(frozen=True, slots=True)
class Snippet:
    """Text from elsewhere that helps to complete."""

    uri: str
    text: str
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. Comes from the connection, never from a message's body."""

    user: str
    """"" where the connection names none: the session then stands for itself."""
    session: str
    tenant: str = ""
    """Tenants never share prefix-cache entries; "" is one common tenant."""
    connection: str = ""
    """Where it calls from, address and port; "" where connections can't be told apart."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen."""

    temperature: float = 0.0
    seed: int | None = None
    speculate: bool = True
    """Whether a draft model may propose tokens."""


@dataclass(frozen=True, slots=True)
class Request:
    """One completion request. Text is whole characters; every limit has been checked."""

    id: str
    """Unique in this process."""
    caller: Caller
    sequence: int
    document_uri: str
    language_id: str
    prefix: str
    suffix: str
    max_tokens: int
    received_at: float
    """Clock seconds at which the wire handed it over."""
    snippets: tuple[Snippet, ...] = ()
    trigger: Trigger = Trigger.AUTOMATIC
    mode: Mode = Mode.SINGLE_LINE
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    deadline: Deadline = NEVER
