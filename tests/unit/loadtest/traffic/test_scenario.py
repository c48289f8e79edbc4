"""Scenario files: reading, the packaged scenarios, and the errors."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from loadtest.traffic.scenario import Scenario, ScenarioError, packaged_scenarios
from loadtest.traffic.typist import TypingModel

PACKAGED = {
    *(
        "abuse",
        "day",
        "editors-10k",
        "next-edits",
        "ramp",
        "reconnect",
        "recorded",
        "region-loss",
        "slow-readers",
        "spike",
        "steady",
    ),
}
REGIONS = [{"name": "east", "share": 0.5}, {"name": "west", "share": 0.5}]


def of(**fields: Any) -> Scenario:
    return Scenario.of({"name": "made", **fields})


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('sessions = 7\n[typing]\naway_share = 0.5\n[[regions]]\nname = "east"\nshare = 1\n')
    found = Scenario.load(path)
    assert (found.name, found.sessions, found.typing.away_share) == ("mine", 7, 0.5)
    assert [region.name for region in found.regions] == ["east"]
    assert of().typing.model == TypingModel(), "the defaults are those of the typist"


def test_overrides_replace_keys_of_a_file() -> None:
    found = Scenario.load("steady", ["sessions=3", "typing.away_share=0.25", "documents.language=rust", "seed=a"])
    assert (found.sessions, found.typing.away_share, found.documents.language, found.seed) == (3, 0.25, "rust", "a")


@pytest.mark.parametrize("override", ["sessions", "=3", "sessions.much=3"])
def test_an_unknown_key_can_not_be_overridden(override: str) -> None:
    with pytest.raises(ScenarioError, match=r"expected SECTION\.KEY=VALUE|is not a section"):
        Scenario.load("steady", [override])


def test_packaged_scenarios_are_valid_and_described() -> None:
    found = {scenario.name: scenario for scenario in packaged_scenarios()}
    assert set(found) == PACKAGED
    assert all(len(scenario.description) > 100 for scenario in found.values())


def test_editors_10k_has_the_load_of_its_description() -> None:
    found = Scenario.load("editors-10k")
    assert (found.sessions, found.duration_s) == (10_000, 300)
    rate = found.sessions * found.session_requests_per_s
    assert 1_600 < rate < 1_700
    assert found.typing.model.away.mean_s == pytest.approx(135, rel=0.01)


@pytest.mark.parametrize(("fields", "says"), [
    ({"sesions": 3}, "sesions: unknown key; did you mean sessions?"),
    ({"zzz": 3}, "zzz: unknown key; known here: abusers, "),
    ({"typing": {"debounce": 3}}, "typing.debounce: unknown key; did you mean typing.debounce_ms?"),
    ({"recorded": {"file": "x", "scal": 3}}, "recorded.scal: unknown key; did you mean recorded.scale?"),
    ({"events": [{"kind": "reconnect", "at": 3}]}, "events.0.at: unknown key; did you mean events.0.at_s?"),
    ({"sessions": 0}, "sessions: input should be greater than or equal to 1, got 0"),
    ({"duration_s": float("inf")}, "duration_s: "),
    ({"typing": {"idle_share": 1.0}}, "typing.idle_share: input should be less than 1, got 1.0"),
    ({"editor": {"prefetch_share": -0.1}}, "editor.prefetch_share: input should be greater than or equal to 0"),
    ({"slow_readers": {"share": 1.1}}, "slow_readers.share: input should be less than or equal to 1, got 1.1"),
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
])  # fmt: skip
def test_a_scenario_that_can_not_be_run_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        of(**fields)
    assert says in str(caught.value)


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        of(sessions=0, typing={"debonce_ms": 3})
    assert str(caught.value).count("\n") == 1


def test_a_file_that_is_no_scenario_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("sessions = \n")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff")
    for name, says in (
        (path, r"mine.toml: not valid TOML"),
        (binary, r"binary.toml: can't be read"),
        ("spke", "did you mean 'spike'"),
        ("/nowhere/mine.toml", "these are packaged: abuse, day"),
    ):
        with pytest.raises(ScenarioError, match=says):
            Scenario.load(name)


def test_named_files_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[recorded]\nfile = "arrivals.csv"\n')
    with pytest.raises(ScenarioError, match=r"recorded.file: no such file, got '.*arrivals.csv'"):
        Scenario.load(path)
    (tmp_path / "arrivals.csv").write_text("")
    assert Scenario.load(path).recorded is not None, "a path is relative to the file that says it"
    with pytest.raises(ScenarioError, match=r"recorded.file: no such file, got ''; name a CSV"):
        Scenario.load("recorded")
    with pytest.raises(ScenarioError, match=r"documents.source: must be 'stdlib' or a folder"):
        Scenario.load("steady", ["documents.source=/nowhere"])


def test_it_can_be_scaled_and_is_checked_again() -> None:
    scenario = Scenario.load("region-loss")
    assert scenario.scaled(sessions=5, seed="x/1").sessions == 5
    assert scenario.scaled(sessions=5) == scenario.scaled(sessions=5, duration_s=scenario.duration_s)
    with pytest.raises(ScenarioError, match="must be before the end at 20 s, got 30"):
        scenario.scaled(duration_s=20)
    with pytest.raises(ScenarioError, match="sessions"):
        scenario.scaled(sessions=0)


def test_digests_differ_between_scenarios_and_survive_a_pickle() -> None:
    scenario = Scenario.load("spike")
    assert pickle.loads(pickle.dumps(scenario)).digest() == scenario.digest()
    assert scenario.scaled(seed=1).digest() != scenario.digest()


def test_sessions_come_nearest_to_a_rate() -> None:
    scenario = of(typing={"idle_share": 0.5})
    assert scenario.session_requests_per_s == pytest.approx(of().session_requests_per_s / 2)
    assert scenario.num_sessions(0.01) == 1
    assert scenario.num_sessions(10 * scenario.session_requests_per_s) == 10
