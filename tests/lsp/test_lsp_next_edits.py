"""Next edits in the form of Copilot's server, seen by a client that is not ours."""

import pytest

from completion.v1 import completion_pb2 as pb
from completion_server.app.engine_factory import make_engine_factory
from tests.support.node_lsp import Json, play
from tests.support.oracle_server import run_oracle
from tests.support.server import eventually, make_config, run_server

pytestmark = pytest.mark.full
WRITES_EDITS = ("engine.kind=scripted", "engine.scripted_times=instant", "prompt.next_edit_template=sweep")


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


async def test_a_name_that_is_changed_once_is_changed_elsewhere_by_a_real_server() -> None:
    config = make_config(*WRITES_EDITS, "engine.max_model_len=4096")
    async with run_server(config, make_engine_factory(config)) as server:
        seen = await play(server.ready.address, "renames")
        await eventually(lambda: server.count("completion_feedback_total", kind="accepted") == 1)
        assert server.count("completion_feedback_total", kind="shown") == 1
        assert server.count("completion_feedback_total", kind="refused") == 0
    edit = seen["edit"]
    assert (edit["text"], edit["range"]) == ("    return width * high\n\nprint(high)\n", lines(1, 4))
    assert seen["next"] == {"edits": []}, "nothing is left to change"
