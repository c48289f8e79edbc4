"""Describes the spans of a request from the times of its stages. Pure.

Attributes have the names of OpenTelemetry's semantic conventions where there is one (rpc.*, gen_ai.*, error.*); the
others begin with "completion.". No attribute holds code text, or a name of a user, tenant, session or document.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from completion_server.core.errors import is_servers_fault
from completion_server.core.events import RequestEnded
from completion_server.core.outcome import CacheLevel, FinishReason, Outcome
from completion_server.core.request import Request
from completion_server.core.trace_context import TraceContext

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]

SERVICE = "completion.v1.CompletionService"
_STATUS = {
    **dict.fromkeys((FinishReason.STOP, FinishReason.LENGTH, FinishReason.SUPERSEDED), "OK"),
    FinishReason.DEADLINE: "DEADLINE_EXCEEDED",
    FinishReason.CANCELLED: "CANCELLED",
}
"""gRPC's status of a `Complete` call. A shed call has the one that `shed.as_status` chooses."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are clock seconds."""

    name: str
    begin: float
    end: float
    attributes: Attributes = field(default_factory=dict)


def describe(
    event: RequestEnded, context: TraceContext, common: Attributes, *, stream_s: float | None, missed_budget: bool
) -> tuple[Span, list[Span]]:
    """Return the span of a request that has ended, and those of its stages.

    `common` are attributes of all requests. Its End was written `stream_s` after it had ended; None if it was not.
    """
    request, marks = event.request, event.marks
    ended = marks.received if marks.ended is None else marks.ended
    begin = marks.received if request.receive_began_at is None else request.receive_began_at
    stages = list(_stages(event, begin, ended))
    if stream_s is not None:
        stages.append(Span("stream", ended, ended + stream_s))
    attributes = {
        **common,
        **{name: value for name, value in _attributes(event).items() if value is not None},
        "completion.missed_budget": missed_budget,
        "completion.sampled": "head" if context.is_sampled else "missed_budget",
    }
    return Span(_method(request), begin, ended + (stream_s or 0.0), attributes), stages


def is_failed(outcome: Outcome) -> bool:
    """Return whether the server failed, not the caller."""
    reason = outcome.reason
    return reason is FinishReason.DEADLINE or (reason is FinishReason.ERROR and is_servers_fault(outcome.error))


def _stages(event: RequestEnded, begin: float, ended: float) -> Iterator[Span]:
    """Yield the stages that were reached, as the histogram completion_stage_seconds has them.

    A stage that was not completed lasts until the end and says so; the histogram does not count it.
    """
    marks = event.marks
    if begin < marks.received:
        yield Span("receive", begin, marks.received)
    times = (marks.received, marks.admitted, marks.started, marks.prompted, marks.first_output)
    for name, (start, stop) in zip(("admission", "queue", "tokenise", "prefill"), pairwise(times), strict=True):
        if start is not None and stop is not None:
            yield Span(name, start, stop)
        elif start is not None and event.end.usage.cache_level is not CacheLevel.LOCAL:  # which answered it at once
            yield Span(name, start, ended, {"completion.unfinished": True})
    if marks.prompted is not None and marks.first_output is not None and marks.last_output is not None:
        yield Span("decode", marks.first_output, marks.last_output)


def _method(request: Request) -> str:
    return f"{SERVICE}/{'Session' if request.caller.stream else 'Complete'}"


def _attributes(event: RequestEnded) -> dict[str, Value | None]:
    """Return the attributes of a request; None for those that it lacks."""
    request, outcome, usage, marks = event.request, event.end.outcome, event.end.usage, event.marks
    code = outcome.error.code.name if outcome.error is not None else _STATUS.get(outcome.reason)
    has_error = outcome.error is not None or outcome.reason is FinishReason.DEADLINE
    first = marks.first_output
    return {
        "rpc.system.name": "grpc",
        "rpc.method": _method(request),
        "rpc.response.status_code": None if request.caller.stream else code,  # a stream's request has no status
        "error.type": str(code) if has_error else None,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": (outcome.reason.value,),
        "gen_ai.response.time_to_first_chunk": None if first is None else first - marks.received,
        "gen_ai.usage.input_tokens": usage.prompt_tokens or None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_prompt_tokens if usage.prompt_tokens else None,
        "gen_ai.usage.output_tokens": usage.completion_tokens or None,
        "completion.trigger": request.trigger.name.lower(),
        "completion.mode": request.mode.value,
        "completion.outcome": outcome.reason.value,
        "completion.shed_reason": outcome.shed_reason and outcome.shed_reason.value,
        "completion.drafted_tokens": usage.drafted_tokens if usage.completion_tokens else None,
        "completion.accepted_draft_tokens": usage.accepted_draft_tokens if usage.completion_tokens else None,
        "completion.cache_level": None if usage.cache_level is CacheLevel.NONE else usage.cache_level.value,
        "completion.tokens_at_first_output": None if first is None else marks.tokens_at_first_output,
        "completion.generation": marks.source and marks.source.value,
    }
