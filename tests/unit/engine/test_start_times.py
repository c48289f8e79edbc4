import json
from pathlib import Path

from completion_server.engine.settings import EngineSettings
from completion_server.engine.start_times import StartTimes


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
        EngineSettings(model="a", revision="main"), EngineSettings(model="a", enforce_eager=True),
        EngineSettings(model="a", kind="scripted"), EngineSettings(model="a", tensor_parallel_size=2),
    ]  # fmt: skip
    assert len({each.start_key for each in settings}) == len(settings)
    assert EngineSettings(model="a", max_num_seqs=8).start_key == EngineSettings(model="a").start_key
