"""What an editor asks for and when: the requests of a session. Knows nothing of how they came to be.

All of it is small: a run has hundreds of thousands of requests, and those of a session share its text.
"""

import hashlib
import struct
from dataclasses import dataclass
from enum import Enum

OPENING_SEQUENCE = 1
"""The sequence number of a session's opening; its requests follow."""

NEVER_S = float("inf")
"""The next key of who types no other."""

_PACKED = struct.Struct("<QQddQQ?")


class Trigger(Enum):
    """Why an editor asks."""

    AUTOMATIC = "automatic"
    """No key came for the debounce time."""
    EXPLICIT = "explicit"
    """The user asked for it, in a pause."""
    PREFETCH = "prefetch"
    """At a key, ahead of the debounce: nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Text:
    """A session's document with a hole at the cursor."""

    before: str
    """Everything up to the last key, and some of what would be typed after it."""
    after: str


@dataclass(frozen=True, slots=True)
class TypedRequest:
    """A request of a session. Times are in seconds from the run's start."""

    session: int
    sequence: int
    """Rises within the session."""
    intended_at_s: float
    """The key's time and the debounce; latencies count from here."""
    next_key_at_s: float
    """When the user types on, after which the answer is worth nothing. It may lie beyond the run's end."""
    is_pause: bool
    """Whether the user waits for long enough to want an answer."""
    trigger: Trigger
    text: Text
    end: int
    """How much of the text stands before the cursor."""
    token_ids: tuple[int, ...] = ()
    """The prompt, for targets that get it as tokens."""
    max_tokens: int = 0
    """0 is the scenario's own."""

    @property
    def prefix(self) -> str:
        """The text before the cursor."""
        return self.text.before[: self.end]

    @property
    def suffix(self) -> str:
        """The text after it."""
        return self.text.after

    @property
    def truth(self) -> str:
        """What the user goes on to type."""
        return self.text.before[self.end :]

    def packed(self) -> bytes:
        """Return all of it but its text and prompt, in bytes."""
        kind = self.trigger.value.encode()
        times = self.intended_at_s, self.next_key_at_s
        return _PACKED.pack(self.session, self.sequence, *times, self.end, self.max_tokens, self.is_pause) + kind


@dataclass(frozen=True, slots=True)
class TypedSession:
    """An editor with one document."""

    number: int
    region: int
    """Its place among the scenario's."""
    user: str
    """"" is one of its own."""
    document_uri: str
    language_id: str
    opening: TypedRequest
    """The document before the first key, for what has to be known of it before the run starts. It is not typed."""
    requests: tuple[TypedRequest, ...]
    reads_every_s: float = 0.0
    """How long it takes between two reads of its stream; 0 reads at once."""

    def hashed(self, salt: str) -> int:
        """Return a hash of all of it but the prompts."""
        named = (salt, self.number, self.region, self.user, self.document_uri, self.language_id, self.reads_every_s)
        found = hashlib.sha256(repr(named).encode())
        text: Text | None = None
        for request in (self.opening, *self.requests):
            if request.text is not text:
                text = request.text
                found.update(repr((text.before, text.after)).encode())
            found.update(request.packed())
        return int.from_bytes(found.digest()[:8], "big")
