"""The messages of the contract, made from the policy's decisions. Pure."""

from collections.abc import Sequence

from completion.v1 import completion_pb2 as pb
from completion_client.editing import Ask, Mode, RecentEdit, Report, Snippet, Text, Trigger

_TRIGGERS = {
    Trigger.AUTOMATIC: pb.TRIGGER_AUTOMATIC,
    Trigger.EXPLICIT: pb.TRIGGER_EXPLICIT,
    Trigger.PREFETCH: pb.TRIGGER_PREFETCH,
}
_MODES = {Mode.SINGLE_LINE: pb.MODE_SINGLE_LINE, Mode.MULTI_LINE: pb.MODE_MULTI_LINE}

_MOST_CHARS = 100_000
"""Sent of each side of the cursor: within a server's default limits whatever the characters."""
_CUT_CHARS = 10_000
"""The beginning of what is sent moves by so much at a time, so that the server need not read all of it anew."""


def request_of(
    text: Text, language_id: str | None, ask: Ask, snippets: Sequence[Snippet], is_long: bool
) -> pb.CompleteRequest:
    """Return the request that the policy asks for; its answer has several lines only if `is_long`."""
    request = _request_at(text, language_id, snippets)
    request.trigger = _TRIGGERS[ask.trigger]
    request.mode = _MODES[ask.mode] if is_long else pb.MODE_SINGLE_LINE
    return request


def edit_request_of(
    text: Text, language_id: str | None, version: int, edits: Sequence[RecentEdit], snippets: Sequence[Snippet]
) -> pb.CompleteRequest | None:
    """Return the request for the next edit of a version of a document; None if the lines are too long to be sent whole.

    A line that is cut would be replaced as if the cut part were all of it.
    """
    request = _request_at(text, language_id, snippets)
    if len(request.prefix) < len(text.before):
        _, is_whole, request.prefix = request.prefix.partition("\n")
        if not is_whole:
            return None
    if len(request.suffix) < len(text.after):
        lines, is_whole, _ = request.suffix.rpartition("\n")
        if not is_whole:
            return None
        request.suffix = f"{lines}\n"
    request.trigger, request.mode = pb.TRIGGER_AUTOMATIC, pb.MODE_NEXT_EDIT
    sent = (pb.RecentEdit(document_uri=each.uri, diff=_encodable(each.diff)) for each in edits)
    request.next_edit.CopyFrom(pb.NextEdit(document_version=version, recent_edits=sent))
    return request


def feedback_of(report: Report, sequence: int) -> pb.ReportFeedbackRequest:
    """Return the feedback that the policy reports."""
    kind = pb.FeedbackKind.Value(f"FEEDBACK_KIND_{report.kind.upper()}")
    return pb.ReportFeedbackRequest(sequence=sequence, kind=kind, accepted_characters=report.characters)


def survival_of(sequence: int, after_s: int, share: float) -> pb.ReportFeedbackRequest:
    """Return the report of how much of an accepted text is still there."""
    return pb.ReportFeedbackRequest(
        sequence=sequence, kind=pb.FEEDBACK_KIND_SURVIVED, survived_after_s=after_s, survived_share=share
    )


def _request_at(text: Text, language_id: str | None, snippets: Sequence[Snippet]) -> pb.CompleteRequest:
    """Return what every request at a place has."""
    beyond = max(0, len(text.before) - _MOST_CHARS)
    return pb.CompleteRequest(
        document_uri=text.uri,
        language_id=language_id or "",
        prefix=_encodable(text.before[-(-beyond // _CUT_CHARS) * _CUT_CHARS :]),
        suffix=_encodable(text.after[:_MOST_CHARS]),
        snippets=[pb.ContextSnippet(uri=each.uri, text=_encodable(each.text), score=each.score) for each in snippets],
    )


def _encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which an editor's JSON may contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
