import math

import pytest

from completion.v1 import completion_pb2 as pb
from completion_server.core.errors import CompletionError, InvalidRequestError, Violation
from completion_server.core.outcome import CacheLevel, Delta, End, FinishReason, Outcome, ShedReason, Timings, Usage
from completion_server.core.request import Caller, Mode, Sampling, Snippet, Trigger
from completion_server.rpc.messages import convert
from completion_server.rpc.settings import LimitSettings

CALLER = Caller("u", "s")
LIMITS = LimitSettings()


def request_of(message: pb.CompleteRequest, deadline_s: float | None = None) -> convert.Request:
    return convert.request_of(message, CALLER, LIMITS, deadline_s, 50.0)


def test_a_whole_message_becomes_a_request() -> None:
    request = request_of(
        pb.CompleteRequest(
            session_id="s",
            sequence=7,
            document_uri="file:///a.py",
            language_id="python",
            prefix="for i in ra",
            suffix="\n",
            snippets=[pb.ContextSnippet(uri="b.py", text="x = 1", score=0.5)],
            trigger=pb.TRIGGER_EXPLICIT,
            mode=pb.MODE_MULTI_LINE,
            max_tokens=9,
            temperature=0.5,
            seed=3,
            stop=["\n\n"],
            without_speculation=True,
        ),
        deadline_s=2.0,
    )
    assert (request.sequence, request.prefix, request.suffix, request.max_tokens) == (7, "for i in ra", "\n", 9)
    assert (request.trigger, request.mode) == (Trigger.EXPLICIT, Mode.MULTI_LINE)
    assert request.sampling == Sampling(0.5, 3, speculate=False)
    assert request.snippets == (Snippet("b.py", "x = 1", 0.5),)
    assert request.stop == ("\n\n",)
    assert request.deadline.at == 52.0


def test_unset_fields_take_the_defaults() -> None:
    request = request_of(pb.CompleteRequest(session_id="s"))
    assert (request.trigger, request.mode) == (Trigger.AUTOMATIC, Mode.SINGLE_LINE)
    assert request.max_tokens == LIMITS.num_default_tokens_single_line
    assert request.sampling == Sampling(0.0, None)
    assert request.deadline.at == 50.0 + LIMITS.max_deadline_s


@pytest.mark.parametrize(
    ("message", "field", "description"),
    [
        ({"max_tokens": -1}, "max_tokens", "must be from 0 (the default) to 128, got -1"),
        ({"max_tokens": 2**31 - 1}, "max_tokens", "must be from 0 (the default) to 128, got 2147483647"),
        ({"trigger": 99}, "trigger", "must be one of 0, 1, 2, 3, got 99"),
        ({"mode": 77}, "mode", "must be one of 0, 1, 2, got 77"),
        ({"temperature": -0.1}, "temperature", "must be from 0 to 2, got -0.1"),
        ({"temperature": math.nan}, "temperature", "must be from 0 to 2, got nan"),
        ({"seed": 2**64 - 1}, "seed", f"must be at most {2**63 - 1}, got {2**64 - 1}"),
        ({"stop": [""]}, "stop[0]", "must not be empty"),
        ({"snippets": [{"score": math.inf}]}, "snippets[0].score", "must be a finite number, got inf"),
    ],
)
def test_an_invalid_field_is_named_with_its_limit_and_its_value(
    message: dict[str, object], field: str, description: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request_of(pb.CompleteRequest(session_id="s", **message))
    assert caught.value.violations == (Violation(field, description),)


def test_an_empty_session_id_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="session_id: must not be empty"):
        convert.session_id_of(pb.CompleteRequest())


def test_every_end_has_a_form_on_the_wire() -> None:
    for reason in FinishReason:
        assert convert.end_message(End(Outcome(reason))).finish_reason != pb.FINISH_REASON_UNSPECIFIED
    for shed in ShedReason:
        assert convert.end_message(End(Outcome(FinishReason.SHED, shed))).shed_reason != pb.SHED_REASON_UNSPECIFIED


def test_an_end_says_which_cache_answered() -> None:
    levels = [
        convert.end_message(End(Outcome(FinishReason.STOP), Usage(cache_level=level))).usage.cache_level
        for level in CacheLevel
    ]
    assert levels == [pb.CACHE_LEVEL_NONE, pb.CACHE_LEVEL_LOCAL, pb.CACHE_LEVEL_SHARED]


def test_an_end_carries_usage_timings_and_the_error() -> None:
    error = CompletionError("no", violations=(Violation("prefix", "bad"),))
    message = convert.end_message(
        End(
            Outcome(FinishReason.ERROR, retry_after_ms=5, error=error),
            Usage(1, 2, 3, 4, 5),
            Timings(1.0, 2.0, 3.0, 4.0, 5.0),
        )
    )
    usage, timings = message.usage, message.timings
    assert [usage.prompt_tokens, usage.cached_prompt_tokens, usage.completion_tokens] == [1, 2, 3]
    assert [usage.drafted_tokens, usage.accepted_draft_tokens] == [4, 5]
    assert [timings.queue_ms, timings.tokenise_ms, timings.prefill_ms] == [1.0, 2.0, 3.0]
    assert [timings.decode_ms, timings.total_ms] == [4.0, 5.0]
    assert (message.retry_after_ms, message.error.code, message.error.message) == (5, 13, "no")
    assert message.error.field_violations[0].field == "prefix"


def test_events_carry_their_text_and_their_sequence() -> None:
    assert convert.response_of(Delta("x")).delta.text == "x"
    response = convert.session_response_of(8, Delta("x"))
    assert (response.sequence, response.delta.text) == (8, "x")


def test_feedback_is_checked() -> None:
    good = pb.ReportFeedbackRequest(kind=pb.FEEDBACK_KIND_SURVIVED, survived_after_s=30, survived_share=0.5)
    assert convert.feedback_of(good).kind == "survived"
    for bad in (
        pb.ReportFeedbackRequest(),
        pb.ReportFeedbackRequest(kind=pb.FEEDBACK_KIND_SURVIVED, survived_after_s=31),
        pb.ReportFeedbackRequest(kind=pb.FEEDBACK_KIND_SHOWN, survived_share=1.5),
    ):
        with pytest.raises(InvalidRequestError):
            convert.feedback_of(bad)
