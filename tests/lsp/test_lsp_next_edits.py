"""Next edits in the form of Copilot's server, seen by a client that is not ours."""

from completion.v1 import completion_pb2 as pb
from tests.support.node_lsp import Json, play
from tests.support.oracle_server import run_oracle
from tests.support.server import eventually


def lines(start: int, end: int) -> Json:
    return {"start": {"line": start, "character": 0}, "end": {"line": end, "character": 0}}


async def test_an_edit_is_offered_with_its_version_and_feedback_is_reported() -> None:
    async with run_oracle() as (oracle, address):
        seen = await play(address, "edits")
        await eventually(lambda: len(oracle.feedback) > 1)
    edit, version = seen["edit"], seen["version"] - 1
    assert (edit["text"], edit["range"]) == ("TOTAL = X\n", lines(1, 2))
    assert edit["textDocument"] == {"uri": "file:///project/a.py", "version": version}
    assert seen["capabilities"]["executeCommandProvider"]["commands"] == [edit["command"]["command"]]
    assert seen["again"]["edits"] == [edit], "the answer for the text was known"
    assert seen["stale"] == seen["secret"] == seen["malformed"] == {"edits": []}
    (next_edit,) = seen["next"]["edits"]
    assert (next_edit["text"], next_edit["range"]) == ("PRINT(X)\n", lines(2, 3))
    first, second = oracle.edit_requests
    assert (first.prefix, first.suffix) == ("y", " = '😋'\ntotal = x\nprint(x)\n")
    assert (first.next_edit.document_version, second.next_edit.document_version) == (version, version + 1)
    (recent,) = first.next_edit.recent_edits
    assert recent.document_uri == "file:///project/a.py"
    assert recent.diff == "@@ -1,3 +1,3 @@\n-x = '😋'\n+y = '😋'\n total = x\n print(x)\n"
    reports = [(each.sequence, each.kind, each.accepted_characters) for each in oracle.feedback]
    assert (first.sequence, pb.FEEDBACK_KIND_SHOWN, 0) in reports
    assert (first.sequence, pb.FEEDBACK_KIND_ACCEPTED, len("TOTAL = X\n")) in reports
