"""Metrics of what users get from the server: answers within the budget, and completions that they accept.

Both join quality to serving. A fast answer that nobody accepts has no value, nor has a good one that comes late.
"""

from bisect import bisect_left
from enum import Enum
from functools import lru_cache
from hashlib import blake2b

from prometheus_client import CollectorRegistry, Counter, Gauge, Info

from completion_server.core.errors import is_servers_fault
from completion_server.core.events import FeedbackReported, RequestEnded, RequestRefused
from completion_server.core.outcome import CacheLevel, FinishReason, Reaction, ServedAnswer, ShedReason
from completion_server.core.request import Mode, Trigger

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
_ANSWERED, _WITH_TEXT = "answered", "with_text"


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


def ttft_range(ttft_s: float) -> str:
    """Return the range of a TTFT in seconds."""
    return TTFT_RANGES[bisect_left(_TTFT_EDGES_S, ttft_s)]


class ObjectiveMetrics:
    """Counts the requests that somebody waited for: "95% within the budget" is a share of them."""

    def __init__(self, registry: CollectorRegistry, budget_s: float) -> None:
        """Register the metrics. `budget_s` is the time in which a first token has a value."""
        self._budget_s = budget_s
        counted = "Requests that somebody waited for, by result; all but in_time count against the objective."
        counter = Counter("completion_slo_requests", counted, ["result"], registry=registry)
        # All series exist from the start: Prometheus takes no first increment from a series that it did not know.
        self._counters = {result: counter.labels(result.value) for result in SloResult}
        budget = "Time in which the first token of a request must come."
        Gauge("completion_ttft_budget_seconds", budget, registry=registry).set(budget_s)

    def ended(self, event: RequestEnded) -> None:
        """Count an ended request, if it counts."""
        result = slo_result(event, self._budget_s)
        if result is not None:
            self._counters[result].inc()

    def refused(self, event: RequestRefused) -> None:
        """Count a request or a session that was not admitted because the server could not serve."""
        if is_servers_fault(event.error):
            self._counters[SloResult.REFUSED].inc()


class QualityMetrics:
    """Counts the reactions of users to completions, by how the completions were served."""

    def __init__(self, registry: CollectorRegistry, model: str) -> None:
        """Register the metric. `model` names the target model."""
        reactions = ", ".join(reaction.value for reaction in Reaction)
        self._model = model
        self._counters_of: dict[tuple[str, int | None, CacheLevel], dict[Reaction, Counter]] = {}
        self._counter = Counter(
            "completion_quality",
            f"Completions by their users' reaction ({reactions}), the range of their TTFT in seconds, the K active "
            "at their end (empty for cached ones), the cache level and the target model.",
            ["event", "ttft", "k", "cache", "model"],
            registry=registry,
        )

    def reported(self, event: FeedbackReported) -> None:
        """Count the reactions that a report tells of for the first time."""
        counters = self._counters(event.answer)
        for reaction in event.reactions:
            counters[reaction].inc()

    def _counters(self, answer: ServedAnswer) -> dict[Reaction, Counter]:
        """Return the counters of completions that were served alike; all of them exist from the first reaction on."""
        key = ttft_range(answer.ttft_s), answer.num_speculative_tokens, answer.cache_level
        if key not in self._counters_of:
            ttft, k, level = key
            labels = (ttft, "" if k is None else str(k), level.value, self._model)
            self._counters_of[key] = {each: self._counter.labels(each.value, *labels) for each in Reaction}
        return self._counters_of[key]


@lru_cache(4096)
def user_group(owner: str) -> int:
    """Return the group of a user by the key of its limits: drawn as if at random, and the same one on every server."""
    return blake2b(owner.encode(), digest_size=1).digest()[0] % NUM_USER_GROUPS


class UserGroupMetrics:
    """Counts answers and reactions by groups of users, for the comparison of a canary with the stable servers.

    A user's answers are alike, so they are no independent samples of a model. Users are: the variance of a share over
    groups of them says how much of a difference is chance.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metric, with all of its series."""
        kinds = (_ANSWERED, _WITH_TEXT, *(reaction.value for reaction in Reaction))
        counter = Counter(
            "completion_user_groups",
            f"Completions by what became of them ({', '.join(kinds)}) and by a group of users, drawn by their names.",
            ["event", "group"],
            registry=registry,
        )
        self._groups = [
            {kind: counter.labels(kind, str(number)) for kind in kinds} for number in range(NUM_USER_GROUPS)
        ]

    def ended(self, event: RequestEnded) -> None:
        """Count a whole answer to a request that somebody waited for; a next edit may be that nothing is to change."""
        request = event.request
        is_wanted = request.trigger is not Trigger.PREFETCH and request.mode is not Mode.NEXT_EDIT
        if not is_wanted or event.end.outcome.reason not in _WHOLE:
            return
        counters = self._groups[user_group(request.caller.owner)]
        counters[_ANSWERED].inc()
        if event.has_text:
            counters[_WITH_TEXT].inc()

    def reported(self, event: FeedbackReported) -> None:
        """Count the reactions that a report tells of for the first time."""
        if event.caller is not None:
            counters = self._groups[user_group(event.caller.owner)]
            for reaction in event.reactions:
                counters[reaction.value].inc()


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
