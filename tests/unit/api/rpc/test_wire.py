"""Messages between the wire and the server: the count of their fields, their decoding and their conversion."""

import contextlib
import math
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from completion.v1 import completion_pb2 as pb
from completion_server.api.rpc import convert
from completion_server.api.rpc.decoder import Decoder, MalformedError
from completion_server.core.errors import CompletionError, InvalidRequestError, Violation
from completion_server.core.outcome import CacheLevel, End, FinishReason, Outcome, ShedReason, Timings, Usage
from completion_server.core.request import Caller, Mode, Sampling, Snippet, Trigger
from completion_server.requests.limits.settings import LimitSettings
from tests.support.constants import with_constants

DEFAULTS = LimitSettings()
LIMITS = with_constants(
    LimitSettings(max_prefix_bytes=40, max_suffix_bytes=30), max_snippets=3, max_snippet_bytes=20, max_uri_bytes=10,
    max_session_id_bytes=8, max_stop=2, max_stop_bytes=5, max_recent_edits=1, max_recent_edit_bytes=20,
)  # fmt: skip
COMPLETE, SESSION = Decoder(pb.CompleteRequest, LIMITS), Decoder(pb.SessionRequest, LIMITS)
TOO_MANY = f"message: must have at most {500 + 4 * (3 + 2 + 1)} fields, got more"


def varint(value: int) -> bytes:
    """Return a number as protobuf has it."""
    return bytes([value]) if value < 128 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def field(number: int, kind: int, payload: bytes = b"") -> bytes:
    return varint(number << 3 | kind) + payload


def text(number: int, content: bytes) -> bytes:
    return field(number, 2, varint(len(content)) + content)


def malformed(data: bytes, decode: Decoder[Any] = COMPLETE) -> MalformedError:
    with pytest.raises(MalformedError) as caught:
        decode(data)
    return caught.value


def request_of(message: pb.CompleteRequest, limits: LimitSettings = DEFAULTS, left_s: float = 2.0) -> convert.Request:
    return convert.request_of(message, Caller("u", "s"), limits, left_s, 50.0)


def edits(*edits: pb.RecentEdit) -> dict[str, Any]:
    return {"mode": pb.MODE_NEXT_EDIT, "next_edit": pb.NextEdit(recent_edits=edits)}


@pytest.mark.parametrize(
    ("message", "field", "description"),
    [
        ({"prefix": "x" * 41}, "prefix", "must be at most 40 bytes, got 41"),
        ({"prefix": "é" * 21}, "prefix", "must be at most 40 bytes, got 42"),
        ({"suffix": "x" * 31}, "suffix", "must be at most 30 bytes, got 31"),
        ({"document_uri": "x" * 11}, "document_uri", "must be at most 10 bytes, got 11"),
        ({"language_id": "x" * 9}, "language_id", "must be at most 8 bytes, got 9"),
        ({"stop": ["a", "bbbbbb"]}, "stop[1]", "must be at most 5 bytes, got 6"),
        ({"stop": ["a"] * 3}, "stop", "must have at most 2 entries, got 3"),
        ({"stop": [""]}, "stop[0]", "must not be empty"),
        ({"snippets": [{}, {"text": "x" * 21}]}, "snippets[1].text", "must be at most 20 bytes, got 21"),
        ({"snippets": [{"uri": "x" * 11}]}, "snippets[0].uri", "must be at most 10 bytes, got 11"),
        ({"snippets": [{}] * 4}, "snippets", "must have at most 3 entries, got 4"),
        ({"snippets": [{"score": math.inf}]}, "snippets[0].score", "must be a finite number, got inf"),
        (edits(pb.RecentEdit(diff="x" * 21)), "next_edit.recent_edits[0].diff", "must be at most 20 bytes, got 21"),
        (
            edits(pb.RecentEdit(document_uri="x" * 11)),
            "next_edit.recent_edits[0].document_uri",
            "must be at most 10 bytes, got 11",
        ),
        (edits(*[pb.RecentEdit()] * 2), "next_edit.recent_edits", "must have at most 1 entries, got 2"),
        ({"max_tokens": -1}, "max_tokens", "must be from 0 (the default) to 128, got -1"),
        ({"max_tokens": 2**31 - 1}, "max_tokens", "must be from 0 (the default) to 128, got 2147483647"),
        (
            {"trigger": 99},
            "trigger",
            "must be one of TRIGGER_UNSPECIFIED, TRIGGER_AUTOMATIC, TRIGGER_EXPLICIT, TRIGGER_PREFETCH, got 99",
        ),
        (
            {"mode": 77},
            "mode",
            "must be one of MODE_UNSPECIFIED, MODE_SINGLE_LINE, MODE_MULTI_LINE, MODE_NEXT_EDIT, got 77",
        ),
        ({"temperature": -0.1}, "temperature", "must be from 0 to 2, got -0.1"),
        ({"temperature": math.nan}, "temperature", "must be from 0 to 2, got nan"),
        ({"seed": 2**64 - 1}, "seed", f"must be at most {2**63 - 1}, got {2**64 - 1}"),
    ],
)
def test_an_invalid_field_is_named_with_its_limit_and_its_value(
    message: dict[str, object], field: str, description: str
) -> None:
    parsed = COMPLETE(pb.CompleteRequest(session_id="s", **message).SerializeToString())
    with pytest.raises(InvalidRequestError) as caught:
        request_of(parsed, LIMITS)
    assert caught.value.violations == (Violation(field, description),)


@pytest.mark.parametrize("session_id", ["", "x" * 9])
def test_a_session_id_has_its_size(session_id: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"session_id: must (not be empty|be at most 8 bytes, got 9)"):
        convert.session_id_of(pb.CompleteRequest(session_id=session_id), LIMITS)


def test_a_default_message_at_every_limit_is_within_the_message_limit() -> None:
    limits = DEFAULTS
    snippet = pb.ContextSnippet(uri="u" * limits.max_uri_bytes, text="t" * limits.max_snippet_bytes, score=0.5)
    name = "n" * limits.max_session_id_bytes
    recent = pb.RecentEdit(document_uri="u" * limits.max_uri_bytes, diff="d" * limits.max_recent_edit_bytes)
    asked = pb.NextEdit(document_version=-1, recent_edits=[recent] * limits.max_recent_edits, lines_before=9)
    whole = pb.CompleteRequest(
        session_id=name, sequence=2**63, document_uri="u" * limits.max_uri_bytes, language_id=name,
        prefix="p" * limits.max_prefix_bytes, suffix="s" * limits.max_suffix_bytes,
        snippets=[snippet] * limits.max_snippets, max_tokens=-1, temperature=0.5, seed=2**63,
        stop=["s" * limits.max_stop_bytes] * limits.max_stop, trigger=1, mode=1, without_speculation=True,
        without_completion_cache=True, timeout_ms=1, next_edit=asked,
    )  # fmt: skip
    size = len(pb.SessionRequest(complete=whole).SerializeToString())
    assert size <= limits.max_message_bytes <= size + 16 * 1024


@pytest.mark.parametrize(
    "one",
    [
        text(99, b""),  # not in the contract
        field(2, 0, b"\x05"),  # in it, and not repeated
        text(7, b""),
        text(7, text(99, b"")),
        text(19, text(2, b"")),
        field(20, 5, b"1234"),
        field(21, 1, b"12345678"),
    ],
)
def test_many_small_fields_are_refused_unparsed_wherever_they_are(one: bytes) -> None:
    many = one * 10**5
    assert malformed(many).message == TOO_MANY
    request = field(2, 0, b"\x05")  # its sequence number comes before the many
    for data in (text(1, request + many), text(1, request) + text(2, many), text(1, request) + text(1, one) * 10**5):
        found = malformed(data, SESSION)
        assert (found.message, found.sequence) == (TOO_MANY, 5)


def test_fields_of_a_newer_contract_and_some_entries_beyond_the_limits_are_parsed() -> None:
    newer = SESSION(text(99, b"new") * 60 + text(1, text(98, b"new") + text(7, b"") * 400))
    assert len(newer.complete.snippets) == 400


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff",
        field(5, 2, b"\x05abc"),  # less than it says
        field(5, 2),
        field(2, 0),
        field(2, 0, b"\x80" * 1_000_000),
        field(20, 5, b"123"),
        field(20, 3) + field(20, 4),  # a group
        field(20, 7),
        text(7, field(2, 2, b"\x05abc")) + b"more",  # beyond the message around it
        text(7, field(3, 1, b"1234")) + b"more",
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    assert malformed(data).message == f"message: {len(data)} bytes that are no protobuf message"


numbers = st.integers(1, 20)
pieces = st.one_of(
    st.builds(text, st.sampled_from((1, 2, 3, 4, 5, 6, 7, 13, 15, 99)), st.binary(max_size=45)),
    st.builds(lambda number, value: field(number, 0, varint(value)), numbers, st.integers(0, 2**64 - 1)),
    st.builds(lambda number, value: field(number, 5, value), numbers, st.binary(min_size=4, max_size=4)),
    st.builds(lambda number, value: field(number, 1, value), numbers, st.binary(min_size=8, max_size=8)),
    st.lists(st.builds(text, st.integers(1, 3), st.binary(max_size=22))).map(lambda parts: text(7, b"".join(parts))),
    st.binary(max_size=6),
)


@given(st.lists(pieces, max_size=12).map(b"".join))
def test_what_protobuf_takes_without_a_group_is_taken_and_nothing_else(data: bytes) -> None:
    for decode, message in ((COMPLETE, pb.CompleteRequest()), (SESSION, pb.SessionRequest())):
        try:
            message.ParseFromString(data)
        except DecodeError:
            assert malformed(data, decode)
            continue
        with contextlib.suppress(MalformedError):  # a group
            assert decode(data) == message


def test_nested_text_that_is_not_utf8_is_named_with_its_place() -> None:
    snippets = [pb.ContextSnippet(), pb.ContextSnippet(text="SPOIL")]
    message = pb.SessionRequest(complete=pb.CompleteRequest(sequence=4, snippets=snippets))
    found = malformed(message.SerializeToString().replace(b"SPOIL", b"SP\xffIL"), SESSION)
    expected = "complete.snippets[1].text: must be UTF-8, but byte 2 is 0xff"
    assert (found.message, found.sequence) == (expected, 4)


def test_a_message_becomes_a_request_and_unset_fields_take_the_defaults() -> None:
    request = request_of(
        pb.CompleteRequest(
            session_id="s", sequence=7, prefix="for i in ra", suffix="\n", max_tokens=9, temperature=0.5, seed=3,
            snippets=[pb.ContextSnippet(uri="b.py", text="x = 1", score=0.5)], trigger=pb.TRIGGER_EXPLICIT,
            mode=pb.MODE_MULTI_LINE, stop=["\n\n"], without_speculation=True, without_completion_cache=True,
        )
    )  # fmt: skip
    assert (request.sequence, request.prefix, request.suffix, request.max_tokens) == (7, "for i in ra", "\n", 9)
    assert (request.trigger, request.mode) == (Trigger.EXPLICIT, Mode.MULTI_LINE)
    assert request.sampling == Sampling(0.5, 3, speculate=False)
    assert (request.snippets, request.stop) == ((Snippet("b.py", "x = 1", 0.5),), ("\n\n",))
    assert (request.use_completion_cache, request.deadline.at) == (False, 52.0)
    request = request_of(pb.CompleteRequest(session_id="s"), left_s=math.inf)
    assert (request.trigger, request.mode, request.sampling) == (Trigger.AUTOMATIC, Mode.SINGLE_LINE, Sampling(0.0))
    assert request.max_tokens == DEFAULTS.num_default_tokens_single_line
    assert (request.use_completion_cache, request.deadline.at) == (True, 50.0 + DEFAULTS.max_deadline_s)


def test_every_end_has_a_form_on_the_wire() -> None:
    for reason in FinishReason:
        assert convert.end_message(End(Outcome(reason))).finish_reason != pb.FINISH_REASON_UNSPECIFIED
    for shed in ShedReason:
        assert convert.end_message(End(Outcome(FinishReason.SHED, shed))).shed_reason != pb.SHED_REASON_UNSPECIFIED
    ends = (End(Outcome(FinishReason.STOP), Usage(cache_level=level)) for level in CacheLevel)
    levels = [convert.end_message(end).usage.cache_level for end in ends]
    assert levels == [pb.CACHE_LEVEL_NONE, pb.CACHE_LEVEL_LOCAL, pb.CACHE_LEVEL_SHARED]


def test_an_end_carries_usage_timings_and_the_error() -> None:
    error = CompletionError("no", violations=(Violation("prefix", "bad"),))
    outcome = Outcome(FinishReason.ERROR, retry_after_ms=5, error=error)
    message = convert.end_message(End(outcome, Usage(1, 2, 3, 4, 5), Timings(1.0, 2.0, 3.0, 4.0, 5.0)))
    assert message.usage == pb.Usage(
        prompt_tokens=1, cached_prompt_tokens=2, completion_tokens=3, drafted_tokens=4, accepted_draft_tokens=5,
        cache_level=pb.CACHE_LEVEL_NONE,
    )  # fmt: skip
    assert message.timings == pb.Timings(queue_ms=1, tokenise_ms=2, prefill_ms=3, decode_ms=4, total_ms=5)
    violation = pb.FieldViolation(field="prefix", description="bad")
    assert message.error == pb.RequestError(code=13, message="no", field_violations=[violation])
    assert message.retry_after_ms == 5


def test_feedback_is_checked() -> None:
    good = pb.ReportFeedbackRequest(kind=pb.FEEDBACK_KIND_SURVIVED, survived_after_s=30, survived_share=0.5)
    assert convert.feedback_of(good).kind == "survived"
    for field, value in (("kind", 0), ("survived_after_s", 31), ("survived_share", 1.5)):
        bad = pb.ReportFeedbackRequest()
        bad.CopyFrom(good)
        setattr(bad, field, value)
        with pytest.raises(InvalidRequestError, match=f"{field}: must be"):
            convert.feedback_of(bad)
