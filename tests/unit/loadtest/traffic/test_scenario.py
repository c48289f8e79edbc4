"""Scenario files, packaged ones and errors; documents, and the stretches of them that are typed."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traffic.documents import (
    DocumentsError,
    SourceFile,
    find_stretch,
    library_files,
    read_documents,
)
from loadtest.traffic.scenario import Scenario, ScenarioError, packaged_scenarios
from loadtest.traffic.sections import DocumentSettings
from loadtest.traffic.typist import TypingModel

REGIONS = [{"name": "east", "share": 0.5}, {"name": "west", "share": 0.5}]


def of(**fields: Any) -> Scenario:
    return Scenario.of({"name": "made", **fields})


def test_a_file_is_read_and_overrides_replace_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('sessions = 7\n[typing]\naway_share = 0.5\n[[regions]]\nname = "east"\nshare = 1\n')
    found = Scenario.load(path, ["sessions=3", "typing.idle_share=0.25", "documents.language=rust", "seed=a"])
    assert (found.name, found.sessions, found.typing.away_share, found.typing.idle_share) == ("mine", 3, 0.5, 0.25)
    assert (found.documents.language, found.seed, found.regions[0].name) == ("rust", "a", "east")
    assert of().typing.model == TypingModel(), "the defaults are those of the typist"
    for override in ("=3", "sessions.much=3"):
        with pytest.raises(ScenarioError, match=r"expected SECTION\.KEY=VALUE|is not a section"):
            Scenario.load("steady", [override])


def test_packaged_scenarios_are_valid_and_have_the_load_of_their_description() -> None:
    found = {scenario.name: scenario for scenario in packaged_scenarios()}
    assert {"editors-10k", "next-edits", "steady"} < found.keys()
    assert all(len(scenario.description) > 100 for scenario in found.values())
    many = found["editors-10k"]
    assert (many.sessions, many.duration_s) == (10_000, 300)
    assert 1_600 < many.sessions * many.session_requests_per_s < 1_700
    assert many.typing.model.away.mean_s == pytest.approx(135, rel=0.01)


@pytest.mark.parametrize(("fields", "says"), [
    ({"sesions": 3}, "sesions: unknown key; did you mean sessions?"),
    ({"events": [{"kind": "reconnect", "at": 3}]}, "events.0.at: unknown key; did you mean events.0.at_s?"),
    ({"sessions": 0}, "sessions: input should be greater than or equal to 1, got 0"),
    ({"duration_s": float("inf")}, "duration_s: "),
    ({"shape": {"kind": "zigzag"}}, "shape.kind: input should be 'steady', 'ramp', 'spike' or 'day', got 'zigzag'"),
    ({"shape": {"kind": "spike", "at_s": 60}}, "shape.at_s: must be before the end at 60 s, got 60"),
    ({"regions": REGIONS[:1]}, "regions: their shares must come to 1, got 0.5"),
    ({"regions": [REGIONS[0], REGIONS[0]]}, "regions: east is there twice"),
    ({"events": [{"kind": "reconnect", "at_s": 60}]}, "events.0.at_s: must be before the end at 60 s, got 60"),
    ({"events": [{"kind": "region_loss", "at_s": 6}]}, "events.0.region: must be named"),
    ({"events": [{"kind": "region_loss", "at_s": 6, "region": "mars"}], "regions": REGIONS},
     "events.0.region: must be one of east, west, got 'mars'"),
    ({"duration_s": 601}, "slice_s: a run of 601 s has at most 600 slices, so it must be at least 1.00167, got 1"),
    ({"sessions": 0, "typing": {"debonce_ms": 3}}, "\n"),
])  # fmt: skip
def test_a_scenario_that_can_not_be_run_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        of(**fields)
    assert says in str(caught.value)


def test_a_file_that_is_no_scenario_is_an_error(tmp_path: Path) -> None:
    path, binary = tmp_path / "mine.toml", tmp_path / "binary.toml"
    path.write_text("sessions = \n")
    binary.write_bytes(b"\xff")
    for name, overrides, says in (
        (path, [], r"mine.toml: not valid TOML"),
        (binary, [], r"binary.toml: can't be read"),
        ("spke", [], "did you mean 'spike'"),
        ("/nowhere/mine.toml", [], "these are packaged: abuse, day"),
        ("steady", ["documents.source=/nowhere"], r"documents.source: must be 'stdlib' or a folder"),
    ):
        with pytest.raises(ScenarioError, match=says):
            Scenario.load(name, overrides)
    path.write_text('[documents]\nsource = "."\n')
    assert Path(Scenario.load(path).documents.source) == tmp_path, "a path is relative to the file that says it"


def test_it_can_be_scaled_and_is_checked_again_and_a_short_run_has_short_slices() -> None:
    scenario = Scenario.load("region-loss")
    assert scenario.scaled(sessions=5, seed="x/1").sessions == 5
    assert scenario.scaled(sessions=5) == scenario.scaled(sessions=5, duration_s=scenario.duration_s)
    for changes, says in (
        ({"duration_s": 20}, "must be before the end at 20 s, got 30"),
        ({"sessions": 0}, "sessions"),
    ):
        with pytest.raises(ScenarioError, match=says):
            scenario.scaled(**changes)
    assert [of(duration_s=seconds).run_slice_s for seconds in (60, 2)] == [1.0, 0.1]


def test_sessions_come_nearest_to_a_rate() -> None:
    scenario = of(typing={"idle_share": 0.5})
    assert scenario.session_requests_per_s == pytest.approx(of().session_requests_per_s / 2)
    assert scenario.num_sessions(0.01) == 1
    assert scenario.num_sessions(10 * scenario.session_requests_per_s) == 10


SMALL = DocumentSettings(prefix_chars=50, suffix_chars=20)
LINES = st.lists(st.text(st.sampled_from("ab (:\t"), max_size=30).map(lambda line: "    " + line), min_size=40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b/second.py", "a.py", "c.rs", ".git/hidden.py"):
        (tmp_path / name).write_text(f"# {name}\n" + "x = 1\n" * 100)
    (tmp_path / "short.py").write_text("x = 1\n")
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe" * 1000)
    return tmp_path


def settings(folder: Path, pattern: str = "*.py", **fields: int) -> DocumentSettings:
    return SMALL.model_copy(update={"source": str(folder), "pattern": pattern, **fields})


def test_a_folder_gives_its_readable_files_that_match_in_an_order_of_the_seed(folder: Path) -> None:
    assert {each.path for each in read_documents(settings(folder), "0")} == {"a.py", "b/second.py"}
    assert [each.path for each in read_documents(settings(folder, "*.rs"), "0")] == ["c.rs"]
    assert [each.path for each in read_documents(settings(folder, "b/*.py"), "0")] == ["b/second.py"]
    for number in range(8):
        (folder / f"more{number}.py").write_text("y = 2\n" * 100)
    orders = [[each.path for each in read_documents(settings(folder), seed)] for seed in ("0", "0", "1")]
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize(
    ("pattern", "fields", "says"),
    [("*.go", {}, "has 0 readable files that match '\\*.go'"), ("*.py", {"prefix_chars": 5000}, "none with more than")],
)
def test_a_folder_without_usable_files_is_an_error(
    folder: Path, pattern: str, fields: dict[str, int], says: str
) -> None:
    with pytest.raises(DocumentsError, match=says):
        read_documents(settings(folder, pattern, **fields), "0")


def test_the_library_is_real_code_without_generated_tables() -> None:
    found = read_documents(DocumentSettings(), "0")
    assert len(found) > 100
    assert not any(each.path.startswith(("encodings/", "test/")) for each in found)
    assert {each.path: each.text for each in found}.items() <= library_files(1_000_000, 0).items()


@given(LINES, st.integers(0, 30), st.integers())
def test_a_stretch_is_typed_in_its_place(lines: list[str], num_keys: int, seed: int) -> None:
    document = SourceFile("x.py", "\n".join(lines * 3))
    found = find_stretch(document, num_keys, SMALL, random.Random(seed))
    if found is None:
        return
    text = document.text
    assert found.before + found.after in text
    assert found.ends[0] == SMALL.prefix_chars
    assert len(found.ends) == num_keys + 1
    assert len(found.after) == SMALL.suffix_chars
    assert len(found.before) >= found.ends[-1] + 200, "there is a truth after the last key"
    assert found == find_stretch(document, num_keys, SMALL, random.Random(seed))
    for end, following in zip(found.ends, found.ends[1:], strict=False):
        key, brought = found.before[end], found.before[end + 1 : following]
        assert brought == "" if key != "\n" else not brought.strip(" \t")
        assert key != "\n" or found.before[following] not in " \t", "Enter brings all of the indentation"
