"""Metrics of tenants, and of what users get: answers within the budget, and completions that they accept."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from completion_server.config import load_config
from completion_server.core import events
from completion_server.core.errors import (
    CompletionError,
    ConfigError,
    DrainingError,
    InvalidRequestError,
    NotPossibleError,
    OverloadedError,
    PermissionDeniedError,
    ServerFullError,
    SessionEndedError,
    SuspectedPromptError,
    UnauthenticatedError,
    UnavailableError,
)
from completion_server.core.events import Feedback, FeedbackReported, Marks, RequestEnded, RequestRefused
from completion_server.core.outcome import (
    CacheLevel,
    End,
    FinishReason,
    Outcome,
    Reaction,
    ServedAnswer,
    ShedReason,
    Usage,
)
from completion_server.core.request import Caller, Mode, Request, Trigger
from completion_server.ops.metrics import Metrics
from completion_server.ops.quality import (
    NUM_USER_GROUPS,
    TTFT_RANGES,
    SloResult,
    model_name,
    slo_result,
    ttft_range,
)
from completion_server.ops.tracing.spans import is_failed as span_has_failed

DONE = End(Outcome(FinishReason.STOP), Usage(100, 80, 5))


def ended(caller: Caller, end: End = DONE) -> events.RequestEnded:
    request = Request("r", caller, 1, "", "", "", "", 8, received_at=0.0)
    return events.RequestEnded(request, end, Marks(0.0, first_output=0.12, ended=0.2))


def requests_of(registry: CollectorRegistry, tenant: str) -> float | None:
    return registry.get_sample_value("completion_tenant_requests_total", {"tenant": tenant, "outcome": "stop"})


def test_configured_tenants_are_counted_by_name_and_all_others_together() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, tenants=("acme", "globex"))
    metrics.handle(ended(Caller("u", "s", tenant="acme", is_verified=True)))
    for other in (
        Caller("u", "s", tenant="initech", is_verified=True),
        Caller("u", "s"),
        Caller("u", "s", tenant="acme"),  # anybody may say so
    ):
        metrics.handle(ended(other))
    assert (requests_of(registry, "acme"), requests_of(registry, "other")) == (1, 3)
    assert requests_of(registry, "globex") == 0  # known from the start, so that a rate sees the first request
    assert requests_of(registry, "initech") is None
    labels = {"tenant": "acme", "le": "0.15"}
    assert registry.get_sample_value("completion_tenant_ttft_seconds_bucket", labels) == 1
    for kind, count in (("prompt", 100), ("cached_prompt", 80), ("completion", 5)):
        assert registry.get_sample_value("completion_tenant_tokens_total", {"tenant": "acme", "kind": kind}) == count


@pytest.mark.parametrize(
    "end",
    [
        End(Outcome(FinishReason.STOP), Usage(100, 80, 5, is_shared=True)),
        End(Outcome(FinishReason.SUPERSEDED), Usage(1000, 0, 0)),  # without output: the cached share is unknown
    ],
    ids=["shared generation", "no output"],
)
def test_the_tokens_of_all_tenants_are_those_of_the_server(end: End) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, tenants=("acme",))
    for each in (DONE, end):
        metrics.handle(ended(Caller("u", "s", tenant="acme", is_verified=True), each))
    for kind, count in (("prompt", 100), ("cached_prompt", 80), ("completion", 5)):
        assert registry.get_sample_value("completion_tokens_total", {"kind": kind}) == count
        assert registry.get_sample_value("completion_tenant_tokens_total", {"tenant": "acme", "kind": kind}) == count


@pytest.mark.parametrize(
    ("tenants", "fault"),
    [
        ('["other"]', "'other' stands for all others"),
        ('["acme", "acme"]', "'acme' is there twice"),
        ('[""]', "1 to 64 printable characters, got ''"),
        (str([f"t{number}" for number in range(65)]).replace("'", '"'), "at most 64 names, got 65"),
    ],
)
def test_tenants_that_can_not_be_labels_are_refused(tenants: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=f"metrics.*tenants.*{fault}"):
        load_config(None, (f"metrics.tenants={tenants}",), {})


BUDGET_S = 0.2


def ended_request(
    reason: FinishReason,
    ended_s: float,
    first_output_s: float | None = None,
    *,
    shed_reason: ShedReason | None = None,
    error: CompletionError | None = None,
    trigger: Trigger = Trigger.AUTOMATIC,
) -> RequestEnded:
    """Return the event of a request that was received at 0 s."""
    request = Request("r", Caller("u", "s"), 1, "", "", "x", "", 8, received_at=0.0, trigger=trigger)
    marks = Marks(0.0, first_output=first_output_s, ended=ended_s)
    return RequestEnded(request, End(Outcome(reason, shed_reason, error=error)), marks)


SHED, ERROR = FinishReason.SHED, FinishReason.ERROR


@pytest.mark.parametrize(
    ("event", "result"),
    [
        (ended_request(FinishReason.STOP, 0.5, 0.2), "in_time"),
        (ended_request(FinishReason.LENGTH, 0.5, 0.201), "late"),
        (ended_request(FinishReason.STOP, 0.1), "in_time"),  # an empty answer
        (ended_request(FinishReason.SUPERSEDED, 0.3, 0.15), "in_time"),  # its user saw the beginning in time
        (ended_request(FinishReason.SUPERSEDED, 0.19), None),  # nobody ended_request
        (ended_request(FinishReason.CANCELLED, 0.19), None),
        (ended_request(FinishReason.SUPERSEDED, 0.9), "late"),  # its user ended_request longer than the budget
        (ended_request(FinishReason.CANCELLED, 0.2), "late"),
        (ended_request(FinishReason.SUPERSEDED, 0.9, 0.5), "late"),
        (ended_request(FinishReason.DEADLINE, 0.15), "late"),
        (ended_request(SHED, 0.001, shed_reason=ShedReason.OVERLOAD), "shed"),
        (ended_request(SHED, 0.001, shed_reason=ShedReason.DEADLINE_UNREACHABLE), "shed"),
        (ended_request(SHED, 0.001, shed_reason=ShedReason.RATE_LIMITED), None),
        (ended_request(SHED, 0.001, shed_reason=ShedReason.DRAINING), None),
        (ended_request(ERROR, 0.3, 0.1, error=UnavailableError("the engine failed")), "failed"),
        (ended_request(ERROR, 0.3), "failed"),
        (ended_request(ERROR, 0.001, error=InvalidRequestError("prefix", "too long")), None),
        (ended_request(ERROR, 0.001, error=SuspectedPromptError("suspected")), None),
        (ended_request(FinishReason.STOP, 0.1, 0.1, trigger=Trigger.PREFETCH), None),
    ],
)
def test_a_request_counts_if_somebody_waited_for_it(event: RequestEnded, result: str | None) -> None:
    found = slo_result(event, BUDGET_S)
    assert (found and found.value) == result


def test_all_results_are_counted_from_zero_on() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, budget_s=BUDGET_S)
    metrics.handle(ended_request(FinishReason.STOP, 0.5, 0.1))
    metrics.handle(RequestRefused(UnavailableError("the engine is starting")))
    metrics.handle(RequestRefused(InvalidRequestError("prefix", "too long")))
    expected = {"in_time": 1, "late": 0, "shed": 0, "failed": 0, "refused": 1}
    for result, count in expected.items():
        assert registry.get_sample_value("completion_slo_requests_total", {"result": result}) == count, result
    assert registry.get_sample_value("completion_ttft_budget_seconds") == BUDGET_S


@pytest.mark.parametrize(
    ("error", "is_counted"),
    [
        (UnavailableError("the engine failed"), True),
        (CompletionError("internal error"), True),
        (ServerFullError("16000 sessions are open"), True),
        (DrainingError("the server is shutting down"), False),  # another one answers
        (SessionEndedError("the stream ends"), False),
        (OverloadedError("64 sessions of this user are open"), False),
        (InvalidRequestError("prefix", "too long"), False),
        (UnauthenticatedError("no name"), False),
        (PermissionDeniedError("not an operator"), False),
        (NotPossibleError("needs a draft model"), False),
        (SuspectedPromptError("suspected"), False),
    ],
)
def test_a_refusal_counts_if_the_server_could_not_serve(error: CompletionError, is_counted: bool) -> None:
    registry = CollectorRegistry()
    Metrics(registry).handle(RequestRefused(error))
    assert registry.get_sample_value("completion_slo_requests_total", {"result": "refused"}) == is_counted
    assert registry.get_sample_value("completion_refused_requests_total", {"code": error.code.name.lower()}) == 1


@pytest.mark.parametrize(
    "error",
    [
        SuspectedPromptError("suspected"), PermissionDeniedError("not allowed"), InvalidRequestError("x", "y"),
        OverloadedError("8 requests are live"), UnavailableError("down"), CompletionError("internal error"), None,
    ],
)  # fmt: skip
def test_metrics_and_traces_blame_the_same_party(error: CompletionError | None) -> None:
    event = ended_request(ERROR, 0.3, error=error)
    is_failed = slo_result(event, BUDGET_S) is SloResult.FAILED
    assert span_has_failed(event.end.outcome) is is_failed


def test_ranges_of_ttft_have_no_gap_and_sort_as_text() -> None:
    assert sorted(TTFT_RANGES) == list(TTFT_RANGES)
    assert ttft_range(0.0) == ttft_range(0.05) == "0.00-0.05"
    assert ttft_range(0.0501) == "0.05-0.10"
    assert ttft_range(0.2) == "0.15-0.20"
    assert ttft_range(1.0) == "0.50-1.00"
    assert ttft_range(1.001) == ttft_range(100.0) == "1.00+"


def reaction_count(registry: CollectorRegistry, event: str, ttft: str, k: str, cache: str) -> float | None:
    labels = {"event": event, "ttft": ttft, "k": k, "cache": cache, "model": "target"}
    return registry.get_sample_value("completion_quality_total", labels)


def test_reactions_are_counted_by_how_the_answer_was_served() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, model="target")
    fast = ServedAnswer(0.03, 5)
    cached = ServedAnswer(0.001, None, CacheLevel.SHARED)
    metrics.handle(FeedbackReported(Feedback("shown"), fast, (Reaction.SHOWN,)))
    metrics.handle(FeedbackReported(Feedback("accepted"), fast, (Reaction.ACCEPTED,)))
    metrics.handle(FeedbackReported(Feedback("accepted"), cached, (Reaction.SHOWN, Reaction.ACCEPTED)))
    metrics.handle(FeedbackReported(Feedback("rejected"), fast, ()))
    assert reaction_count(registry, "shown", "0.00-0.05", "5", "none") == 1
    assert reaction_count(registry, "accepted", "0.00-0.05", "5", "none") == 1
    assert reaction_count(registry, "survived", "0.00-0.05", "5", "none") == 0
    assert reaction_count(registry, "shown", "0.00-0.05", "", "shared") == 1
    assert reaction_count(registry, "accepted", "0.00-0.05", "", "shared") == 1
    assert registry.get_sample_value("completion_feedback_total", {"kind": "rejected"}) == 1


def group_counts(registry: CollectorRegistry, event: str) -> list[float]:
    """Return the counts of the groups of users that have any."""
    samples = (each for family in registry.collect() for each in family.samples)
    found = [each for each in samples if each.name == "completion_user_groups_total" and each.labels["event"] == event]
    assert len(found) == NUM_USER_GROUPS, "all exist from the start"
    return [each.value for each in found if each.value]


def test_answers_and_reactions_are_counted_by_groups_of_users() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    ann, bob = (Caller(name, "s", tenant="acme", is_verified=True) for name in ("ann", "bob"))
    for caller, has_text in ((ann, True), (ann, False), (bob, True)):
        metrics.handle(replace(ended(caller), has_text=has_text))
    answer = ServedAnswer(0.03, 5)
    metrics.handle(FeedbackReported(Feedback("accepted"), answer, (Reaction.SHOWN, Reaction.ACCEPTED), ann))
    metrics.handle(FeedbackReported(Feedback("shown"), answer, (Reaction.SHOWN,), bob))
    metrics.handle(FeedbackReported(Feedback("survived"), answer, (Reaction.SURVIVED,), ann))
    counts = {each: sorted(group_counts(registry, each)) for each in ("answered", "with_text", "shown")}
    assert counts == {"answered": [1, 2], "with_text": [1, 1], "shown": [1, 1]}
    assert group_counts(registry, "accepted") == group_counts(registry, "survived") == [1]


@pytest.mark.parametrize(
    "event",
    [
        ended_request(FinishReason.SUPERSEDED, 0.3, 0.1),
        ended_request(SHED, 0.001, shed_reason=ShedReason.OVERLOAD),
        ended_request(ERROR, 0.3, 0.1),
        ended_request(FinishReason.STOP, 0.3, 0.1, trigger=Trigger.PREFETCH),
        replace(ended(Caller("u", "s")), request=replace(ended(Caller("u", "s")).request, mode=Mode.NEXT_EDIT)),
    ],
    ids=["superseded", "shed", "failed", "prefetch", "next edit"],
)
def test_only_whole_answers_that_somebody_waits_for_are_counted_by_groups(event: RequestEnded) -> None:
    registry = CollectorRegistry()
    Metrics(registry).handle(event)
    assert group_counts(registry, "answered") == []


def test_groups_of_users_are_of_about_equal_size() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for number in range(100 * NUM_USER_GROUPS):
        metrics.handle(ended(Caller(f"user-{number}@example.com", "s", tenant="acme", is_verified=True)))
    counts = group_counts(registry, "answered")
    # The chi-squared distribution with 31 degrees of freedom is below 61 in 999 of 1000 cases.
    assert sum((each - 100) ** 2 / 100 for each in counts) < 61


def test_a_model_in_a_folder_has_the_same_name_on_all_hosts() -> None:
    assert model_name("/srv/models/starcoder2-13b-int8/") == "starcoder2-13b-int8"
    assert model_name("./target") == "target"
    assert model_name("bigcode/starcoder2-3b") == "bigcode/starcoder2-3b"
    assert not model_name("")
