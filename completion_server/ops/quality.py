"""What metrics and traces count as good for users: answers within the budget, and completions that they accept.

Both join quality to serving. A fast answer that nobody accepts has no value, nor has a good one that comes late.
"""

from bisect import bisect_left
from enum import Enum
from functools import lru_cache
from hashlib import blake2b

from prometheus_client import CollectorRegistry, Info

from completion_server.core.errors import is_servers_fault
from completion_server.core.events import RequestEnded
from completion_server.core.outcome import FinishReason, ShedReason
from completion_server.core.request import Mode, Trigger
from completion_server.core.trace_context import TraceContext

_TTFT_EDGES_S = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
TTFT_RANGES = (
    *(f"{low:.2f}-{high:.2f}" for low, high in zip((0.0, *_TTFT_EDGES_S), _TTFT_EDGES_S, strict=False)),
    f"{_TTFT_EDGES_S[-1]:.2f}+",
)
"""Values of the label `ttft`: ranges in seconds, each with its upper end. They sort as text."""

_WHOLE = frozenset({FinishReason.STOP, FinishReason.LENGTH})
_DROPPED = frozenset({FinishReason.SUPERSEDED, FinishReason.CANCELLED})
_NOT_COUNTED = frozenset({ShedReason.RATE_LIMITED, ShedReason.DRAINING})
"""Shed for the caller's own limit, or to be asked again of another replica."""
NUM_USER_GROUPS = 32


class SloResult(Enum):
    """What became of a request that somebody waited for. All but the first count against the objective."""

    IN_TIME = "in_time"
    """It had its first token within the budget."""
    LATE = "late"
    """It had its first token later or never, and was still wanted when the budget was over."""
    SHED = "shed"
    FAILED = "failed"
    """By a fault of the server."""
    REFUSED = "refused"
    """Not admitted: the engine was not ready, or the server had too many sessions. A draining server refuses so that
    another one answers, which does not count."""


def slo_result(event: RequestEnded, budget_s: float) -> SloResult | None:
    """Return what an ended request means for the objective; None if it does not count.

    Nobody waited for a prefetch, nor for a request that its user dropped within the budget. One that its user dropped
    later counts as late: leaving it out would hide the longest waits.
    """
    marks, outcome = event.marks, event.end.outcome
    if event.request.trigger is Trigger.PREFETCH:
        return None
    if outcome.reason is FinishReason.SHED:
        return None if outcome.shed_reason in _NOT_COUNTED else SloResult.SHED
    if outcome.reason is FinishReason.ERROR:
        return SloResult.FAILED if is_servers_fault(outcome.error) else None
    is_dropped = outcome.reason in _DROPPED
    if marks.first_output is not None:
        is_early = marks.first_output - marks.received <= budget_s
        return SloResult.IN_TIME if is_early else SloResult.LATE
    is_early = marks.ended is not None and marks.ended - marks.received < budget_s
    if is_early and is_dropped:
        return None
    is_empty_answer = outcome.reason in _WHOLE
    return SloResult.IN_TIME if is_early and is_empty_answer else SloResult.LATE


def has_missed_budget(event: RequestEnded, budget_s: float) -> bool:
    """Return whether an ended request counts against the objective."""
    return slo_result(event, budget_s) not in {None, SloResult.IN_TIME}


def exported_trace(event: RequestEnded, budget_s: float) -> TraceContext | None:
    """Return the trace that an ended request is exported in: it was sampled, or has missed the budget."""
    trace = event.request.trace
    return trace if trace is not None and (trace.is_sampled or has_missed_budget(event, budget_s)) else None


def ttft_range(ttft_s: float) -> str:
    """Return the range of a TTFT in seconds."""
    return TTFT_RANGES[bisect_left(_TTFT_EDGES_S, ttft_s)]


@lru_cache(4096)
def user_group(owner: str) -> str:
    """Return the group of a user by the key of its limits: drawn as if at random, and the same one on every server.

    A user's answers are alike, so they are no independent samples of a model. Users are: the variance of a share over
    groups of them says how much of the difference between a canary and the stable servers is chance.
    """
    return str(blake2b(owner.encode(), digest_size=1).digest()[0] % NUM_USER_GROUPS)


def is_whole_and_wanted(event: RequestEnded) -> bool:
    """Return whether somebody waited for a whole answer and got it; a next edit may be that nothing is to change."""
    request = event.request
    is_wanted = request.trigger is not Trigger.PREFETCH and request.mode is not Mode.NEXT_EDIT
    return is_wanted and event.end.outcome.reason in _WHOLE


def add_build_info(registry: CollectorRegistry, version: str, **models: tuple[str, str | None]) -> None:
    """Register `completion_build_info`, whose value is 1. `models` are a name and a revision for each label."""
    labels = {"version": version}
    for label, (name, revision) in models.items():
        labels |= {label: model_name(name), f"{label}_revision": revision or ""}
    Info("completion_build", "The server's version, its models and their revisions.", registry=registry).info(labels)


def model_name(model: str) -> str:
    """Return a short name of a model: the last part of a folder's path, whose place differs between hosts."""
    is_path = model.startswith(("/", "./", "../", "~"))
    return model.rstrip("/").rpartition("/")[2] if is_path else model
