"""The traces of the benchmark: one for each round and context, of which a trial takes the first sessions. Pure.

A session depends on the seed and its number only, so a trial of 20 sessions has those of a trial of 10.
"""

from dataclasses import dataclass, replace

from loadtest.traffic.trace import Text, Trace, TypedRequest

Key = tuple[int, int]
"""A request of a trace: the numbers of its session and of its sequence."""

_GOES_ON_CHARS = 200
"""Text kept after the cursor's window; an answer is compared with it."""


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The text around the cursor that an editor sends."""

    name: str
    prefix_chars: int
    suffix_chars: int


CONTEXTS = (ContextSize("short", 400, 100), ContextSize("long", 1500, 400))


@dataclass(frozen=True, slots=True)
class TrialLength:
    """How long a trial of a number of editors takes: long enough for some pauses."""

    least_s: float
    most_s: float
    pauses: int
    pauses_per_s: float
    """Of one editor."""

    def seconds(self, sessions: int) -> float:
        """Return the duration of a trial."""
        return min(self.most_s, max(self.least_s, self.pauses / (self.pauses_per_s * sessions)))


def first_sessions(trace: Trace, sessions: int, seconds: float) -> Trace:
    """Return the first sessions of a trace and their first seconds."""
    cut = [
        replace(each, requests=tuple(request for request in each.requests if request.intended_at_s < seconds))
        for each in trace.sessions[:sessions]
    ]
    return replace(trace, sessions=tuple(cut), duration_s=seconds)


def pauses_of(trace: Trace) -> list[TypedRequest]:
    """Return the requests after which the user waits."""
    return [request for session in trace.sessions for request in session.requests if request.is_pause]


def requests_like(chosen: Trace, sent: Trace) -> Trace:
    """Return those requests of `sent` that `chosen` has, too; both come from one trace."""
    keys = {key_of(request) for session in chosen.sessions for request in session.requests}
    sessions = [
        replace(each, requests=tuple(request for request in each.requests if key_of(request) in keys))
        for each in sent.sessions
    ]
    return replace(sent, sessions=tuple(each for each in sessions if each.requests))


def key_of(request: TypedRequest) -> Key:
    """Return the key of a request."""
    return request.session, request.sequence


def with_sliding_window(trace: Trace, context: ContextSize) -> Trace:
    """Return a trace as clients send it that cut the text themselves: their window moves with each key."""

    def cut(request: TypedRequest) -> TypedRequest:
        start = max(0, request.end - context.prefix_chars)
        before = request.text.before[start : request.end + _GOES_ON_CHARS]
        text = Text(before, request.text.after[: context.suffix_chars])
        return replace(request, text=text, end=request.end - start)

    sessions = [
        replace(each, opening=cut(each.opening), requests=tuple(map(cut, each.requests))) for each in trace.sessions
    ]
    return replace(trace, sessions=tuple(sessions))
