"""The requests of a session, with their times, and the trace of a run. Knows nothing of how they are made.

The records are small because a run has hundreds of thousands of them; all requests of a session share its text.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

OPENING_SEQUENCE = 1
"""The sequence number of a session's opening; its requests follow."""

NEVER_S = float("inf")
"""Time of the next key of a user who types no more."""

_PACKED = struct.Struct("<QQddQQ?")
_DIGESTS = 2**64


class Trigger(Enum):
    """Why an editor sends a request."""

    AUTOMATIC = "automatic"
    """No key came for the debounce time."""
    EXPLICIT = "explicit"
    """The user asked for a completion, in a pause."""
    PREFETCH = "prefetch"
    """At a key, ahead of the debounce; no user waits for the answer."""


@dataclass(frozen=True, slots=True)
class Text:
    """A session's document, divided at the cursor."""

    before: str
    """The text up to the last key, and some of the text that would be typed after it."""
    after: str


@dataclass(frozen=True, slots=True)
class TypedRequest:
    """A request of a session. Times are in seconds from the run's start."""

    session: int
    sequence: int
    """Rises from request to request."""
    intended_at_s: float
    """The key's time and the debounce; latencies count from here."""
    next_key_at_s: float
    """Time of the next key, after which the answer is worthless. It may lie beyond the run's end."""
    is_pause: bool
    """Whether the next key comes so late that the user is taken to wait for an answer."""
    trigger: Trigger
    text: Text
    end: int
    """Offset of the cursor in the text."""
    token_ids: tuple[int, ...] = ()
    """The prompt, for targets that receive tokens."""
    max_tokens: int = 0
    """0 means the scenario's value."""

    @property
    def prefix(self) -> str:
        """The text before the cursor."""
        return self.text.before[: self.end]

    @property
    def suffix(self) -> str:
        """The text after the cursor."""
        return self.text.after

    @property
    def truth(self) -> str:
        """The text that the user types next."""
        return self.text.before[self.end :]

    def packed(self) -> bytes:
        """Return all fields except the text and the prompt, as bytes."""
        kind = self.trigger.value.encode()
        times = self.intended_at_s, self.next_key_at_s
        return _PACKED.pack(self.session, self.sequence, *times, self.end, self.max_tokens, self.is_pause) + kind


@dataclass(frozen=True, slots=True)
class TypedSession:
    """An editor with one document."""

    number: int
    region: int
    """Index of the session's region in the scenario."""
    user: str
    """User name; with "" each session has its own user."""
    document_uri: str
    language_id: str
    opening: TypedRequest
    """A request with the document before the first key, for the lead-in. It is not typed."""
    requests: tuple[TypedRequest, ...]
    reads_every_s: float = 0.0
    """Time between two reads of the stream; 0 reads at once."""

    def hashed(self, salt: str) -> int:
        """Return a hash of everything except the prompts."""
        named = (salt, self.number, self.region, self.user, self.document_uri, self.language_id, self.reads_every_s)
        found = hashlib.sha256(repr(named).encode())
        text: Text | None = None
        for request in (self.opening, *self.requests):
            if request.text is not text:
                text = request.text
                found.update(repr((text.before, text.after)).encode())
            found.update(request.packed())
        return int.from_bytes(found.digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Event:
    """An event that breaks streams. Times are in seconds from the run's start."""

    at_s: float
    kind: str
    """`reconnect`: the streams break and reconnect. `region_loss`: a region's host is unreachable for a time."""
    region: int | None
    """Region whose streams break; None for all."""
    until_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests of a worker's share of the sessions."""

    seed: str
    duration_s: float
    """Requests are intended before this."""
    sessions: tuple[TypedSession, ...]
    events: tuple[Event, ...] = ()

    @property
    def num_requests(self) -> int:
        """Number of requests, without the openings."""
        return sum(len(session.requests) for session in self.sessions)

    def documents(self) -> Iterator[tuple[str, TypedRequest]]:
        """Yield all requests with their session's name, session by session in the order of the keys."""
        for session in self.sessions:
            for request in (session.opening, *session.requests):
                yield f"{self.seed}/{session.number}", request

    def with_token_ids(self, token_ids: Iterator[Sequence[int]]) -> "Trace":
        """Return a copy with prompts, given in the order of `documents`."""

        def rendered(request: TypedRequest) -> TypedRequest:
            return replace(request, token_ids=tuple(next(token_ids)))

        sessions = [
            replace(each, opening=rendered(each.opening), requests=tuple(map(rendered, each.requests)))
            for each in self.sessions
        ]
        return replace(self, sessions=tuple(sessions))

    def digest(self) -> str:
        """Return a hash of everything except the prompts."""
        salt = repr((self.seed, self.duration_s, self.events))
        return f"{sum(session.hashed(salt) for session in self.sessions) % _DIGESTS:016x}"


def join_digests(digests: Iterable[str]) -> str:
    """Return the digest of the whole trace from the digests of the workers' shares, in any order."""
    return f"{sum(int(digest, 16) for digest in digests) % _DIGESTS:016x}"
