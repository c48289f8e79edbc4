"""The syntax of targets, the pure part of an editor, and requests for next edits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completion.v1 import completion_pb2 as pb
from completion_server.core.diffs import Hunk, parse_hunks
from loadtest.commands.outcome import Refused
from loadtest.commands.run import check
from loadtest.driving.recorder import Recorder
from loadtest.driving.run import Machine
from loadtest.driving.worker import make_target
from loadtest.report.figures import figures
from loadtest.stats import RunStats
from loadtest.targets import NEAREST, ClientSettings, TargetError, nearest_target, parse_target
from loadtest.targets.editor import (
    EditorCache,
    RequestFactory,
    accepted_chars,
    ask_next_edit,
    common_chars,
    has_right_line,
    is_typed_along,
    take_end,
)
from loadtest.targets.record import Record, RunClock
from loadtest.traffic.scenario import Scenario
from loadtest.traffic.sections import CriteriaSettings
from loadtest.traffic.typed import OPENING_SEQUENCE, Text, TypedRequest, TypedSession
from tests.unit.loadtest.typed import request, trace


def test_a_target_has_a_name_hosts_and_options() -> None:
    spec = parse_target("grpc://127.0.0.1:50051")
    assert (spec.name, spec.kind, spec.hosts) == ("grpc://127.0.0.1:50051", "grpc", ("127.0.0.1:50051",))
    assert (dict(spec.options), spec.metrics_url, spec.num_connections(500)) == ({}, "", 0)
    uri = "grpc+complete://a:1,[::1]:2?metrics=b:9&connections=64"
    spec = parse_target(f"ours={uri}")
    assert (spec.name, spec.uri, spec.kind, spec.hosts) == ("ours", uri, "grpc+complete", ("a:1", "[::1]:2"))
    assert (spec.metrics_url, dict(spec.options)) == ("http://b:9/metrics", {"connections": "64"})
    assert [spec.num_connections(sessions) for sessions in (1, 6_400, 6_401, 10_000)] == [64, 64, 65, 100]
    spec = parse_target("openai+http://a:1?fim=<P>{prefix}<S>{suffix}&model=org/m&metrics=https://b:9/own?x")
    assert spec.options == {"fim": "<P>{prefix}<S>{suffix}", "model": "org/m"}
    assert spec.metrics_url == "https://b:9/own?x"


def test_a_completion_server_has_a_default_port_and_a_list_of_servers_is_a_target() -> None:
    assert parse_target("grpc+complete://a,b:1,[::1],[::1]:2").hosts == ("a:50051", "b:1", "[::1]:50051", "[::1]:2")
    spec = nearest_target("a, [::1]:2 ,c:3")
    assert (spec.kind, spec.hosts) == (NEAREST, ("a:50051", "[::1]:2", "c:3"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("127.0.0.1:50051", "is no target: expected"),
        ("grcp://a:1", "unknown scheme 'grcp' .did you mean 'grpc'.*; known are grpc, grpc.complete"),
        ("llama+http://a", "'a' is not HOST:PORT"),
        ("grpc://a:70000", "not HOST:PORT"),
        ("grpc+nearest://a:1", "at least two HOST:PORT"),
        ("grpc+nearest://a:1,b:2,a:1", "each another one"),
        ("grpc://a:1?conections=3", "no option 'conections' .did you mean 'connections'"),
        ("grpc://a:1?connections=0", "connections must be a whole number of at least 1, got '0'"),
        ("openai+http://a:1?fim={suffix}{prefix}", "fim must hold"),
        ("openai+http://a:1?body=[1]", "body must be a JSON object"),
        ("openai+http://a:1?body={", "body must be a JSON object"),
        ("llama+http://a:1?waits=yes", "waits must be 0 or 1, got 'yes'"),
    ],
)
def test_an_invalid_target_is_an_error(text: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        make_target(parse_target(text), ClientSettings())


def at(before: str, end: int) -> TypedRequest:
    return request(text=Text(before, ""), end=end)


@given(st.text("ab", max_size=6), st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_a_user_accepts_what_is_typed_next_if_it_is_enough(before: str, truth: str, completion: str) -> None:
    common = max(length for length in range(len(completion) + 1) if truth.startswith(completion[:length]))
    typed = at(before + truth, len(before))
    assert common_chars(completion, typed) == common
    assert accepted_chars(completion, typed, 3) == (common if common >= 3 else 0)
    assert is_typed_along(completion, typed) is (common == min(len(completion), len(truth)) > 0)


@pytest.mark.parametrize(
    ("shown", "truth", "is_right"),
    [
        ("(a)", "(a)\n", True),
        ("(a)\n    c()", "(a)\n    b()", True),
        ("\n    b()  \n", "\n    b()\nc", True),
        ("(a, b)", "(a)\n", False),
        ("(a", "(a)\n", False),
        ("", "\n", False),
    ],
)
def test_the_line_is_right_that_the_user_goes_on_to_type(shown: str, truth: str, is_right: bool) -> None:
    assert has_right_line(shown, at("x" + truth, 1)) is is_right


@pytest.mark.parametrize(
    ("completion", "end", "found"),
    [
        ("hello(", 4, "hello("),
        ("hello(", 6, "llo("),
        ("hello(", 3, ""),
        ("he \n", 6, ""),
        ("hx", 6, ""),
        ("he", 8, ""),
    ],
)
def test_a_cache_answers_a_user_who_types_its_completion(completion: str, end: int, found: str) -> None:
    cache = EditorCache(2)
    cache.add(at("x = hello", 4), completion)
    assert cache.find(at("x = hello", end)) == found
    assert not cache.find(at("x = hexlo", 7)), "another text"


def test_a_cache_is_small_and_prefers_the_newest() -> None:
    cache, none = EditorCache(2), EditorCache(0)
    for completion in ("hello 1", "hello 2", "hello 3"):
        cache.add(at("x = hello", 4), completion)
        none.add(at("x = hello", 4), completion)
    assert cache.find(at("x = hello", 6)) == "llo 3"
    for _ in range(2):
        cache.add(at("x = hello", 8), "nothing")
    assert not cache.find(at("x = hello", 6))
    assert not none.find(at("x = hello", 4))


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


async def test_a_request_for_a_next_edit_has_whole_lines_and_what_was_typed() -> None:
    found = await message(3)
    assert found.mode == pb.MODE_NEXT_EDIT
    assert (found.prefix, found.suffix) == ("import os\n\ndef f():\n    return os.name", "  # end\nlast line\n")
    assert found.next_edit.document_version == found.sequence == OPENING_SEQUENCE + 3
    assert {each.document_uri for each in found.next_edit.recent_edits} == {"file:///0.py"}
    assert [parse_hunks(each.diff) for each in found.next_edit.recent_edits] == [
        (Hunk(("import  # end",), ("import os", "", "  # end")),),
        (Hunk(("  # end",), ("def f():", "      # end")),),
        (Hunk(("      # end",), ("    return os.name  # end",)),),
    ]
    assert found.next_edit.recent_edits[2].diff.startswith("@@ -5,1 +5,1 @@\n")
    assert not (await message(0)).next_edit.recent_edits, "the opening has no edits"
    last_line = pb.CompleteRequest(prefix="cut\nreturn os.", suffix="name  # end")
    ask_next_edit(last_line, session(), session().requests[0])
    assert (last_line.prefix, last_line.suffix) == ("return os.", "name  # end")


async def test_answers_and_edits_are_counted_with_the_time_to_the_end() -> None:
    stats, made = RunStats("made", 10.0, 1.0), session()
    recorder = Recorder(stats, [made], {0: "local"}, CriteriaSettings())
    factory = RequestFactory(made, "s", "u", ClientSettings(mode="next_edit"))
    for typed, edit in zip(made.requests, (pb.Edit(text="a\n"), pb.Edit(line_count=1), None), strict=True):
        record = Record(typed, RunClock(-typed.intended_at_s - 0.1), recorder.ended)
        recorder.due(record)
        factory.message(record, None)
        take_end(record, pb.End(finish_reason=pb.FINISH_REASON_STOP, edit=edit))
    counters, found = stats.total.counters, figures(stats, CriteriaSettings())
    assert (counters["edit_answers"], counters["edits"]) == (3, 2)
    assert (counters["outcome/answered"], counters["outcome/empty"]) == (2, 1)
    assert found["edit_share"] == pytest.approx(2 / 3)
    assert found["ttft_ms_p50"] == pytest.approx(100, abs=50)
    assert found["total_ms_p50"] == pytest.approx(100, abs=50)


def test_only_grpc_targets_are_asked_for_next_edits() -> None:
    scenario, other = Scenario.load("next-edits"), parse_target("x=llama+http://a:1")
    check(scenario, [parse_target("grpc://a:1"), parse_target("grpc+complete://a:1")], Machine(), is_interleaved=False)
    with pytest.raises(Refused, match=r"editor\.mode: only grpc targets answer requests for next edits, not x"):
        check(scenario, [other], Machine(), is_interleaved=False)
