"""The place of a request in a distributed trace, as in W3C Trace Context. Pure.

The standard: https://www.w3.org/TR/trace-context/
"""

from collections.abc import Callable
from dataclasses import dataclass

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A request's own span in its trace."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits: the span of this request in this server, the parent of its stages."""
    is_sampled: bool
    """Whether its spans are exported. A request that is not sampled may still be exported if it misses its budget."""
    parent_id: str = ""
    """The caller's span; "" if the trace begins here."""
    state: str = ""
    """The caller's tracestate."""

    def headers(self) -> dict[str, str]:
        """Return the headers that make another part's spans children of this request's span."""
        headers = {TRACEPARENT: f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"}
        if self.state:
            headers[TRACESTATE] = self.state
        return headers


BeginTrace = Callable[[str, str], TraceContext | None]
"""Returns the trace context of a request that comes in with these two headers, traceparent and tracestate.

Either may be "". None: tracing is off.
"""


def no_trace(_traceparent: str, _tracestate: str) -> None:
    """Return None: tracing is off."""
    return
