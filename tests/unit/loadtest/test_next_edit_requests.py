"""Requests for next edits of the load tester: their messages and what their answers count as."""

from dataclasses import replace

import pytest

from completion.v1 import completion_pb2 as pb
from completion_server.core.diffs import Hunk, parse_hunks
from loadtest.commands.outcome import Refused
from loadtest.commands.run import check
from loadtest.driving.recorder import Recorder
from loadtest.driving.run import Machine
from loadtest.report.figures import figures
from loadtest.stats import RunStats
from loadtest.targets import ClientSettings, parse_target
from loadtest.targets.editor import RequestFactory, take_end
from loadtest.targets.next_edits import ask_next_edit
from loadtest.targets.record import Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.sections import CriteriaSettings
from loadtest.traffic.typed import OPENING_SEQUENCE, Text, TypedSession
from tests.unit.loadtest.typed import request, trace

BEFORE = "cut\nimport os\n\ndef f():\n    return os.name\n"
TEXT = Text(BEFORE, "  # end\nlast line\ncut")
ENDS = [BEFORE.index("import") + len("import"), BEFORE.index("def"), BEFORE.index("return"), len(BEFORE) - 1]


def session() -> TypedSession:
    opening, *typed = (
        request(float(place), sequence=OPENING_SEQUENCE + place, text=TEXT, end=end) for place, end in enumerate(ENDS)
    )
    return replace(trace().sessions[0], opening=opening, requests=tuple(typed))


async def message(place: int) -> pb.CompleteRequest:
    made = session()
    record = Record((made.opening, *made.requests)[place], RunClock())
    return RequestFactory(made, "s", "u", ClientSettings(mode="next_edit", max_tokens=512)).message(record, None)


async def test_a_request_has_whole_lines_and_what_was_typed() -> None:
    found = await message(3)
    assert found.mode == pb.MODE_NEXT_EDIT
    assert found.prefix == "import os\n\ndef f():\n    return os.name"
    assert found.suffix == "  # end\nlast line\n"
    assert found.next_edit.document_version == found.sequence == OPENING_SEQUENCE + 3
    assert {each.document_uri for each in found.next_edit.recent_edits} == {"file:///0.py"}
    hunks = [parse_hunks(each.diff) for each in found.next_edit.recent_edits]
    assert hunks == [
        (Hunk(("import  # end",), ("import os", "", "  # end")),),
        (Hunk(("  # end",), ("def f():", "      # end")),),
        (Hunk(("      # end",), ("    return os.name  # end",)),),
    ]
    assert found.next_edit.recent_edits[2].diff.startswith("@@ -5,1 +5,1 @@\n")


async def test_the_last_line_keeps_its_rest() -> None:
    message = pb.CompleteRequest(prefix="cut\nreturn os.", suffix="name  # end")
    made = session()
    ask_next_edit(message, made, made.requests[0])
    assert (message.prefix, message.suffix) == ("return os.", "name  # end")


async def test_the_opening_has_no_edits() -> None:
    assert not (await message(0)).next_edit.recent_edits


async def test_answers_and_edits_are_counted_with_the_time_to_the_end() -> None:
    stats = RunStats("made", 10.0, 1.0)
    made = session()
    recorder = Recorder(stats, [made], {0: "local"}, CriteriaSettings())
    factory = RequestFactory(made, "s", "u", ClientSettings(mode="next_edit"))
    for typed, edit in zip(made.requests, (pb.Edit(text="a\n"), pb.Edit(line_count=1), None), strict=True):
        record = Record(typed, RunClock(-typed.intended_at_s - 0.1), recorder.ended)
        recorder.due(record)
        factory.message(record, None)
        take_end(record, pb.End(finish_reason=pb.FINISH_REASON_STOP, edit=edit))
    counters = stats.total.counters
    assert (counters["edit_answers"], counters["edits"]) == (3, 2)
    assert (counters["outcome/answered"], counters["outcome/empty"]) == (2, 1)
    found = figures(stats, CriteriaSettings())
    assert found["edit_share"] == pytest.approx(2 / 3)
    assert found["ttft_ms_p50"] == pytest.approx(100, abs=50)
    assert found["total_ms_p50"] == pytest.approx(100, abs=50)


def test_only_grpc_targets_are_asked() -> None:
    scenario, other = Scenario.load("next-edits"), parse_target("x=llama+http://a:1")
    grpc = [parse_target("grpc://a:1"), parse_target("grpc+complete://a:1")]
    check(scenario, grpc, Machine(), is_interleaved=False)
    with pytest.raises(Refused, match=r"editor\.mode: only grpc targets answer requests for next edits, not x"):
        check(scenario, [other], Machine(), is_interleaved=False)
    check(Scenario.load("steady"), [other], Machine(), is_interleaved=False)
