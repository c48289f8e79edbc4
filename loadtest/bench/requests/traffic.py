"""The traffic of the load tester as requests of the server, for the pipeline in this process."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from completion.v1 import completion_pb2 as pb
from completion_server.core.clock import Deadline
from completion_server.core.request import Caller, Mode, Request, Trigger
from loadtest.traffic import typed
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.typed import Trace

_MAX_DEADLINE_S = 30.0
_TRIGGERS: Mapping[typed.Trigger, tuple[Trigger, "pb.Trigger.ValueType"]] = {
    typed.Trigger.AUTOMATIC: (Trigger.AUTOMATIC, pb.TRIGGER_AUTOMATIC),
    typed.Trigger.EXPLICIT: (Trigger.EXPLICIT, pb.TRIGGER_EXPLICIT),
    typed.Trigger.PREFETCH: (Trigger.PREFETCH, pb.TRIGGER_PREFETCH),
}


@dataclass(frozen=True, slots=True)
class Key:
    """A request of the trace, also as the server's type and as the message that an editor sends."""

    request: Request
    message: bytes
    typed: typed.TypedRequest


def keys_of(trace: Trace, scenario: Scenario, run: str) -> list[Key]:
    """Return the requests of a trace in the order of their times. `run` makes the callers of one pass over it new."""
    keys = [key for session in trace.sessions for key in _keys(session, scenario, run)]
    return sorted(keys, key=lambda key: key.typed.intended_at_s)


def _keys(session: typed.TypedSession, scenario: Scenario, run: str) -> Iterator[Key]:
    name = f"{run}/{session.number}"
    caller = Caller("", name, connection="192.0.2.1:50000", peer="192.0.2.1", stream=session.number + 1)
    mode = Mode.MULTI_LINE if scenario.editor.mode == "multi_line" else Mode.SINGLE_LINE
    for each in session.requests:
        request = Request(
            id=f"{session.number}/{each.sequence}",
            caller=caller,
            sequence=each.sequence,
            document_uri=session.document_uri,
            language_id=session.language_id,
            prefix=each.prefix,
            suffix=each.suffix,
            max_tokens=scenario.editor.max_tokens,
            received_at=each.intended_at_s,
            trigger=_TRIGGERS[each.trigger][0],
            mode=mode,
            deadline=Deadline.after(_MAX_DEADLINE_S, each.intended_at_s),
        )
        yield Key(request, _message(request, _TRIGGERS[each.trigger][1]), each)


def _message(request: Request, trigger: "pb.Trigger.ValueType") -> bytes:
    message = pb.CompleteRequest(
        session_id=request.caller.session,
        sequence=request.sequence,
        document_uri=request.document_uri,
        language_id=request.language_id,
        prefix=request.prefix,
        suffix=request.suffix,
        trigger=trigger,
        mode=pb.MODE_MULTI_LINE if request.mode is Mode.MULTI_LINE else pb.MODE_SINGLE_LINE,
        max_tokens=request.max_tokens,
        temperature=0.0,
    )
    return pb.SessionRequest(complete=message).SerializeToString()
