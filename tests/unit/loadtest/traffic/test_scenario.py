"""Scenario files: reading, the packaged scenarios, and the errors."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from loadtest.traffic.scenario import Scenario, ScenarioError, packaged_scenarios
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
    for override in ("sessions", "=3", "sessions.much=3"):
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
    ({"zzz": 3}, "zzz: unknown key"),
    ({"typing": {"debounce": 3}}, "typing.debounce: unknown key; did you mean typing.debounce_ms?"),
    ({"events": [{"kind": "reconnect", "at": 3}]}, "events.0.at: unknown key; did you mean events.0.at_s?"),
    ({"sessions": 0}, "sessions: input should be greater than or equal to 1, got 0"),
    ({"duration_s": float("inf")}, "duration_s: "),
    ({"editor": {"prefetch_share": -0.1}}, "editor.prefetch_share: input should be greater than or equal to 0"),
    ({"shape": {"kind": "zigzag"}}, "shape.kind: input should be 'steady', 'ramp', 'spike' or 'day', got 'zigzag'"),
    ({"shape": {"kind": "spike", "at_s": 60}}, "shape.at_s: must be before the end at 60 s, got 60"),
    ({"regions": []}, "regions: tuple should have at least 1 item"),
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


def test_digests_differ_between_scenarios_and_survive_a_pickle() -> None:
    scenario = Scenario.load("spike")
    assert pickle.loads(pickle.dumps(scenario)).digest() == scenario.digest()
    assert scenario.scaled(seed=1).digest() != scenario.digest()


def test_sessions_come_nearest_to_a_rate() -> None:
    scenario = of(typing={"idle_share": 0.5})
    assert scenario.session_requests_per_s == pytest.approx(of().session_requests_per_s / 2)
    assert scenario.num_sessions(0.01) == 1
    assert scenario.num_sessions(10 * scenario.session_requests_per_s) == 10
