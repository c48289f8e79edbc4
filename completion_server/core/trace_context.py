"""The place of a request in a distributed trace, as in W3C Trace Context. Pure.

The standard: https://www.w3.org/TR/trace-context/
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_MAX_TRACEPARENT = 128
"""Characters. Version 00 has 55; later versions may append fields."""
_MAX_TRACESTATE = 512
"""Characters that every party must pass on; a longer state may be dropped."""
_PARENT = re.compile("(?P<version>[0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?P<rest>-.*)?", re.ASCII)
_MEMBER = re.compile(
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})=([!-+\--<>-~ ]{0,255}[!-+\--<>-~])"
)
"""A vendor's entry of a tracestate. What breaks the form may be anything, and libraries would log it."""
_MAX_MEMBERS = 32
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class ParentSpan:
    """The caller's span, in which a request is a part."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    is_sampled: bool
    """Whether the caller records the trace."""
    state: str = ""
    """The caller's tracestate, passed on unchanged; "" if it is not valid."""

    @classmethod
    def parse(cls, traceparent: str, tracestate: str = "") -> "ParentSpan | None":
        """Return the span that the two headers name; None if `traceparent` is not valid, which is no error."""
        match = _PARENT.fullmatch(traceparent) if len(traceparent) <= _MAX_TRACEPARENT else None
        if match is None:
            return None
        version, trace_id, span_id, flags, rest = match.groups()
        is_valid = version != "ff" and int(trace_id, 16) and int(span_id, 16) and not (version == "00" and rest)
        if not is_valid:
            return None
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), _valid_state(tracestate))


def _valid_state(tracestate: str) -> str:
    """Return a tracestate, "" if a part of it is not valid."""
    if not tracestate or len(tracestate) > _MAX_TRACESTATE:
        return ""
    matches = [_MEMBER.fullmatch(member.strip(" \t")) for member in tracestate.split(",")]
    keys = {match.group(1) for match in matches if match is not None}
    return tracestate if len(keys) == len(matches) <= _MAX_MEMBERS else ""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A request's own span in its trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits: the span of this request in this server, the parent of its stages."""
    is_sampled: bool
    """Whether its spans are exported. A request that is not sampled may still be exported if it misses its budget."""
    parent: ParentSpan | None = None
    """The caller's span; None if the trace begins here."""

    def headers(self) -> dict[str, str]:
        """Return the headers that make another part's spans children of this request's span."""
        headers = {TRACEPARENT: f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"}
        if self.parent is not None and self.parent.state:
            headers[TRACESTATE] = self.parent.state
        return headers


BeginTrace = Callable[[str, str], TraceContext | None]
"""Returns the trace context of a request that comes in with these two headers, traceparent and tracestate.

Either may be "". None: the request is in no trace. Tracing is off, or it is in no trace of a caller and not sampled.
"""


def no_trace(_traceparent: str, _tracestate: str) -> None:
    """Return None: tracing is off."""
    return
