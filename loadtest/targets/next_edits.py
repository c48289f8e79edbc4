"""Requests for next edits of a typist, whose last changes are the text typed between the requests before."""

from itertools import pairwise

from completion.v1 import completion_pb2 as pb
from loadtest.traffic.typed import OPENING_SEQUENCE, TypedRequest, TypedSession

MODE = "next_edit"
"""The editors' mode in which they ask for next edits."""
_NUM_EDITS = 4


def ask_next_edit(message: pb.CompleteRequest, session: TypedSession, request: TypedRequest) -> None:
    """Make the message of a request one for a next edit: whole lines, and what was typed before."""
    message.prefix = message.prefix.partition("\n")[2] or message.prefix
    message.suffix = message.suffix[: message.suffix.rfind("\n") + 1] or message.suffix
    message.next_edit.document_version = request.sequence
    place = request.sequence - OPENING_SEQUENCE
    before = (session.opening, *session.requests[:place])[max(0, place - _NUM_EDITS) : place]
    for begin, end in pairwise([*(each.end for each in before), request.end]):
        if begin < end:
            message.next_edit.recent_edits.add(document_uri=session.document_uri, diff=_hunk(request, begin, end))


def _hunk(request: TypedRequest, begin: int, end: int) -> str:
    """Return the change of the document by the text typed from one offset to another."""
    before, rest = request.text.before, request.text.after.partition("\n")[0]
    line = before.rfind("\n", 0, begin) + 1
    number = before.count("\n", 0, line) + 1
    new = (before[line:end] + rest).split("\n")
    header = f"@@ -{number},1 +{number},{len(new)} @@\n-{before[line:begin]}{rest}\n"
    return header + "".join(f"+{each}\n" for each in new)
