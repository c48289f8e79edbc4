"""What editors ask for and when: the whole schedule, made before anything runs. The same seed gives the same trace.

Each session types the real continuation of a file of Python's standard library, at a place of its own: a stretch is cut
out and typed again, key by key, and Enter brings the next line's indentation along. A key becomes a request when no
other key came within the debounce time.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from loadtest.bench.prompt_typing import library_files
from loadtest.bench.prompts import TooFewTextsError
from loadtest.typist import TypingModel

OPENING_SEQUENCE = 1
"""The sequence number of a session's opening; its typed requests follow."""

_CHARACTERS_A_KEY = 3
"""Room kept for each key when a place is drawn; whether it is enough is seen when it has been typed."""
_TRIES = 8
"""Places drawn in a file before another file is taken."""
_NOT_TYPED = ("encodings/", "pydoc_data/")
"""Tables that were generated."""
_OPENING_AT_S = 0.0
_NEVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class TypedRequest:
    """A request of a session. Times are in seconds from the trace's start."""

    session: int
    sequence: int
    """Rises within the session."""
    intended_at_s: float
    """The key's time and the debounce; latencies count from here."""
    next_key_at_s: float
    """When the user types on, after which the answer is worth nothing. It may lie beyond the trace's end."""
    is_pause: bool
    """Whether the user waits for long enough to want an answer."""
    prefix: str
    suffix: str
    token_ids: tuple[int, ...] = ()
    """The prompt, for targets that get it as tokens."""


@dataclass(frozen=True, slots=True)
class TypedSession:
    """An editor with one document."""

    number: int
    document_uri: str
    opening: TypedRequest
    """The document before the first key, for what has to be known of it before the trace starts. It is not typed."""
    requests: tuple[TypedRequest, ...]


@dataclass(frozen=True, slots=True)
class Typing:
    """What all sessions of a trace have in common."""

    model: TypingModel = TypingModel()
    debounce_s: float = 0.05
    """An editor asks when no key came for this long."""
    pause_s: float = 0.5
    """A user who types no key for this long waits for an answer."""
    prefix_chars: int = 1500
    """Text before the cursor when the session begins; what is typed is added."""
    suffix_chars: int = 400

    @property
    def requests_per_s(self) -> float:
        """Requests a second of one session, in the long run."""
        return self.model.requests_per_s(self.debounce_s)

    def num_sessions(self, requests_per_s: float) -> int:
        """Return how many sessions come nearest to a rate, at least one."""
        return max(1, round(requests_per_s / self.requests_per_s))


@dataclass(frozen=True, slots=True)
class Trace:
    """A schedule."""

    seed: str
    duration_s: float
    """Requests are intended before this."""
    sessions: tuple[TypedSession, ...]

    @property
    def num_requests(self) -> int:
        """Requests, openings not among them."""
        return sum(len(session.requests) for session in self.sessions)

    def documents(self) -> Iterator[tuple[str, TypedRequest]]:
        """Yield everything that is asked for, session by session in the order of its keys, with the session's name."""
        for session in self.sessions:
            for request in (session.opening, *session.requests):
                yield f"{self.seed}/{session.number}", request

    def with_token_ids(self, token_ids: Iterator[Sequence[int]]) -> "Trace":
        """Return it with prompts, taken in the order of `documents`."""

        def rendered(request: TypedRequest) -> TypedRequest:
            return replace(request, token_ids=tuple(next(token_ids)))

        sessions = [
            replace(each, opening=rendered(each.opening), requests=tuple(map(rendered, each.requests)))
            for each in self.sessions
        ]
        return replace(self, sessions=tuple(sessions))

    def digest(self) -> str:
        """Return what tells it from another: a hash of all of it but the prompts."""
        bare = self.with_token_ids(iter([()] * (self.num_requests + len(self.sessions))))
        return hashlib.sha256(json.dumps(asdict(bare)).encode()).hexdigest()[:16]


def make_trace(num_sessions: int, duration_s: float, seed: str, typing: Typing | None = None) -> Trace:
    """Make a trace.

    Raises:
        TooFewTextsError: no file of the standard library is long enough.

    """
    typing = typing or Typing()
    found = library_files(sys.maxsize, random.Random(f"files/{seed}").getrandbits(32))
    files = [(path, text) for path, text in found.items() if not path.startswith(_NOT_TYPED)]
    sessions: list[TypedSession] = []
    at = 0
    for number in range(num_sessions):
        chance = random.Random(f"{seed}/{number}")
        times_s = typing.model.key_times_s(duration_s, chance)
        for _ in files:
            path, text = files[at % len(files)]
            at += 1
            place = _find_place(text, len(times_s) - 1, typing, chance)
            if place is not None:
                break
        else:
            msg = f"no file of the standard library has room for {len(times_s)} keys"
            raise TooFewTextsError(msg)
        sessions.append(_session(number, path, place, times_s, duration_s, typing))
    return Trace(seed, duration_s, tuple(sessions))


@dataclass(frozen=True, slots=True)
class _Place:
    """A stretch of a text that is typed again."""

    before: str
    """Everything up to the end of the stretch."""
    ends: tuple[int, ...]
    """How much of it stands there before the first key and after each."""
    after: str


def _find_place(text: str, num_keys: int, typing: Typing, chance: random.Random) -> _Place | None:
    """Draw a place for so many keys; None where there seems to be none."""
    last = len(text) - typing.suffix_chars - num_keys * _CHARACTERS_A_KEY
    if last <= typing.prefix_chars:
        return None
    for _ in range(_TRIES):
        line_end = text.find("\n", chance.randrange(typing.prefix_chars, last))
        begin = _after_key(text, line_end)
        ends = _typed(text, begin, num_keys)
        resume = text.find("\n", ends[-1])
        if line_end >= 0 and len(ends) == num_keys + 1 and 0 <= resume <= len(text) - typing.suffix_chars:
            start = begin - typing.prefix_chars
            after = text[resume : resume + typing.suffix_chars]
            return _Place(text[start : ends[-1]], tuple(end - start for end in ends), after)
    return None


def _typed(text: str, begin: int, num_keys: int) -> list[int]:
    """Return where typing a text has come to before the first key and after each, up to the text's end."""
    ends = [begin]
    while len(ends) <= num_keys and ends[-1] < len(text):
        ends.append(_after_key(text, ends[-1]))
    return ends


def _after_key(text: str, at: int) -> int:
    """Return where the key for the character at an offset leads: Enter brings the next line's indentation."""
    end = at + 1
    if text[at] == "\n":
        while end < len(text) and text[end] in " \t":
            end += 1
    return end


def _session(
    number: int, path: str, place: _Place, times_s: Sequence[float], duration_s: float, typing: Typing
) -> TypedSession:
    def request(sequence: int, end: int, intended_at_s: float, next_key_at_s: float, *, is_pause: bool) -> TypedRequest:
        return TypedRequest(
            session=number,
            sequence=sequence,
            intended_at_s=intended_at_s,
            next_key_at_s=next_key_at_s,
            is_pause=is_pause,
            prefix=place.before[:end],
            suffix=place.after,
        )

    opening = request(OPENING_SEQUENCE, place.ends[0], _OPENING_AT_S, _NEVER_S, is_pause=False)
    requests: list[TypedRequest] = []
    for end, key_at_s, next_key_at_s in zip(place.ends[1:], times_s, times_s[1:], strict=False):
        intended_at_s = key_at_s + typing.debounce_s
        if next_key_at_s > intended_at_s and intended_at_s < duration_s:
            is_pause = next_key_at_s - key_at_s >= typing.pause_s
            sequence = OPENING_SEQUENCE + 1 + len(requests)
            requests.append(request(sequence, end, intended_at_s, next_key_at_s, is_pause=is_pause))
    return TypedSession(number, f"file:///{path}", opening, tuple(requests))
