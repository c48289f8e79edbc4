"""Describes the spans of a request from the times of its stages. Pure.

Attributes have the names of OpenTelemetry's semantic conventions where there is one (rpc.*, gen_ai.*, error.*); the
others begin with "completion.". No attribute holds code text, or a name of a user, tenant, session or document.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from completion_server.core.errors import Code, is_servers_fault
from completion_server.core.events import Marks, RequestEnded
from completion_server.core.outcome import CacheLevel, FinishReason, Outcome, ShedReason, Usage
from completion_server.core.request import Request, Trigger
from completion_server.core.trace_context import TraceContext

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]

SERVICE = "completion.v1.CompletionService"
_STATUS = {
    FinishReason.STOP: "OK",
    FinishReason.LENGTH: "OK",
    FinishReason.SUPERSEDED: "OK",
    FinishReason.DEADLINE: Code.DEADLINE_EXCEEDED.name,
    FinishReason.CANCELLED: Code.CANCELLED.name,
}
"""gRPC's status of a `Complete` call. A shed call has the one that `shed.as_status` chooses."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are clock seconds."""

    name: str
    begin: float
    end: float
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The spans of one request: that of the request itself, and its stages, which are its children."""

    context: TraceContext
    root: Span
    stages: tuple[Span, ...]
    is_failed: bool
    """Whether the server failed, not the caller."""
    linked: TraceContext | None = None
    """The trace of another request, whose generation answered this one; only if that is exported."""


def describe(
    event: RequestEnded, context: TraceContext, engine: Attributes, *, written: float | None, missed_budget: bool
) -> RequestTrace:
    """Return the spans of a request that has ended.

    `engine` are attributes of all requests, such as the model. `written` is when its End was written, in clock seconds;
    None if it was not.
    """
    request, end, marks = event.request, event.end, event.marks
    ended = marks.received if marks.ended is None else marks.ended
    begin = marks.received if request.receive_began_at is None else request.receive_began_at
    has_waited = end.usage.cache_level is not CacheLevel.LOCAL
    stages = [Span(*stage) for stage in _stages(begin, marks, ended, has_waited=has_waited)]
    if written is not None:
        stages.append(Span("stream", ended, written))
    attributes: dict[str, Value] = {
        **engine,
        **_of_request(request),
        **_of_outcome(end.outcome, is_call=not request.caller.stream),
        **_of_usage(end.usage),
        **_of_marks(marks),
        "completion.missed_budget": missed_budget,
        "completion.sampled": "head" if context.is_sampled else "missed_budget",
    }
    root = Span(f"{SERVICE}/{_method(request)}", begin, ended if written is None else written, attributes)
    source = marks.generation_trace
    linked = source if source is not None and source.is_sampled and source.span_id != context.span_id else None
    return RequestTrace(context, root, tuple(stages), _is_failed(end.outcome), linked)


def _stages(
    begin: float, marks: Marks, ended: float, *, has_waited: bool
) -> Iterator[tuple[str, float, float, Attributes]]:
    """Yield the stages that were reached, as the histogram completion_stage_seconds has them.

    A stage that was not completed lasts until the end and says so; the histogram does not count it.
    """
    if begin < marks.received:
        yield "receive", begin, marks.received, {}
    times = (
        ("admission", marks.received, marks.admitted),
        ("queue", marks.admitted, marks.started),
        ("tokenise", marks.started, marks.prompted),
        ("prefill", marks.prompted, marks.first_output),
    )
    for name, start, stop in times:
        if start is None:
            return
        if stop is not None:
            yield name, start, stop, {}
        elif has_waited:  # else the process's cache answered it at once
            yield name, start, ended, {"completion.unfinished": True}
    if marks.prompted is not None and marks.first_output is not None and marks.last_output is not None:
        yield "decode", marks.first_output, marks.last_output, {}


def _method(request: Request) -> str:
    return "Session" if request.caller.stream else "Complete"


def _of_request(request: Request) -> dict[str, Value]:
    return {
        "rpc.system.name": "grpc",
        "rpc.method": f"{SERVICE}/{_method(request)}",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.stream": True,
        "completion.trigger": request.trigger.name.lower(),
        "completion.mode": request.mode.value,
    }


def _of_outcome(outcome: Outcome, *, is_call: bool) -> dict[str, Value]:
    found: dict[str, Value] = {
        "completion.outcome": outcome.reason.value,
        "gen_ai.response.finish_reasons": (outcome.reason.value,),
    }
    if outcome.shed_reason is not None:
        found["completion.shed_reason"] = outcome.shed_reason.value
    code = outcome.error.code.name if outcome.error is not None else _STATUS.get(outcome.reason)
    if is_call and code is not None:  # a request of a stream has no status of its own
        found["rpc.response.status_code"] = code
    if outcome.error is not None or outcome.reason is FinishReason.DEADLINE:
        found["error.type"] = str(code)
    return found


def _of_usage(usage: Usage) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if usage.prompt_tokens:
        found["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        found["gen_ai.usage.cache_read.input_tokens"] = usage.cached_prompt_tokens
    if usage.completion_tokens:
        found["gen_ai.usage.output_tokens"] = usage.completion_tokens
        found["completion.drafted_tokens"] = usage.drafted_tokens
        found["completion.accepted_draft_tokens"] = usage.accepted_draft_tokens
    if usage.cache_level is not CacheLevel.NONE:
        found["completion.cache_level"] = usage.cache_level.value
    return found


def _of_marks(marks: Marks) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if marks.first_output is not None:
        found["gen_ai.response.time_to_first_chunk"] = marks.first_output - marks.received
        found["completion.tokens_at_first_output"] = marks.tokens_at_first_output
    if marks.source is not None:
        found["completion.generation"] = marks.source.value
    return found


def _is_failed(outcome: Outcome) -> bool:
    if outcome.reason is FinishReason.ERROR:
        return is_servers_fault(outcome.error)
    return outcome.reason is FinishReason.DEADLINE


def misses_budget(request: Request, outcome: Outcome, marks: Marks, budget_s: float) -> bool:
    """Return whether a request had no first token within its budget though its user waited for it as long.

    Requests that were shed count, except those for a limit that their caller exceeds, and those of a draining server.
    Nobody waits for a prefetch.
    """
    if request.trigger is Trigger.PREFETCH:
        return False
    if marks.first_output is not None:
        return marks.first_output - marks.received > budget_s
    match outcome.reason:
        case FinishReason.SHED:
            return outcome.shed_reason in {ShedReason.OVERLOAD, ShedReason.DEADLINE_UNREACHABLE}
        case FinishReason.DEADLINE:
            return True
        case FinishReason.ERROR:
            return is_servers_fault(outcome.error)
        case _:
            return marks.ended is not None and marks.ended - marks.received > budget_s
