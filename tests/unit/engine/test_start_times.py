"""How long starts take, the wait before them, and the settings of an engine."""

import json
from pathlib import Path

from completion_server.engine.settings import EngineSettings
from completion_server.engine.start_times import RestartBackoff, StartEstimate, StartTimes


def test_the_duration_of_a_start_outlives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "start-times.json"
    assert StartTimes(path).last_s("a") is None
    StartTimes(path).record("a", 34.56)
    StartTimes(path).record("b", 2.0)
    StartTimes(path).record("a", 31.0)
    assert (StartTimes(path).last_s("a"), StartTimes(path).last_s("b")) == (31.0, 2.0)


def test_the_file_stays_small(tmp_path: Path) -> None:
    times = StartTimes(tmp_path / "times.json")
    for number in range(100):
        times.record(f"model {number}", 1.0)
    assert (times.last_s("model 99"), times.last_s("model 0")) == (1.0, None)
    assert len(json.loads((tmp_path / "times.json").read_text())) == 64


def test_a_file_that_is_damaged_or_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    for text in ("{", "[1]", '{"a": "soon"}', ""):
        (tmp_path / "damaged.json").write_text(text)
        assert StartTimes(tmp_path / "damaged.json").last_s("a") is None
    (tmp_path / "file").write_text("")
    StartTimes(tmp_path / "file" / "times.json").record("a", 1.0)
    StartTimes(None).record("a", 1.0)
    assert StartTimes(None).last_s("a") is None


def test_starts_of_other_models_have_other_keys() -> None:
    settings = [
        EngineSettings(model="a"), EngineSettings(model="b"), EngineSettings(model="a", draft_model="b"),
        EngineSettings(model="a", enforce_eager=True),
        EngineSettings(model="a", kind="scripted"), EngineSettings(model="a", tensor_parallel_size=2),
    ]  # fmt: skip
    assert len({each.start_key for each in settings}) == len(settings)
    for same in (EngineSettings(model="a", max_num_seqs=8), EngineSettings(model="a", revision="1")):
        assert same.start_key == EngineSettings(model="a").start_key


def test_the_end_of_a_start_is_predicted_from_the_last_one() -> None:
    estimate = StartEstimate(10.0)
    estimate.begin(100.0)
    assert (estimate.remaining_s(104.0), estimate.remaining_s(130.0)) == (6.0, 0.0)
    assert estimate.end(135.0) == estimate.remaining_s(140.0) == 35.0
    first = StartEstimate()
    first.begin(0.0)
    assert first.remaining_s(1.0) is None


def test_the_wait_doubles_until_an_engine_has_served_for_long() -> None:
    backoff = RestartBackoff(EngineSettings())
    waits = [backoff.next_wait_s(served_s) for served_s in (1000, *(0,) * 6, 59, 60, 0)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 0.5, 1]


def test_a_step_may_take_as_long_as_an_engine_may_be_silent() -> None:
    assert [EngineSettings(hang_timeout_s=each).step_timeout_s for each in (10, 90)] == [60, 90]
