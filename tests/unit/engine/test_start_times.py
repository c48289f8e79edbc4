"""How long starts take, the wait before them, and the settings of an engine."""

import json
import time
from pathlib import Path

import pytest

from completion_server.engine import start_times
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


def test_a_step_may_take_as_long_as_an_engine_may_be_silent() -> None:
    assert [EngineSettings(hang_timeout_s=each).step_timeout_s for each in (10, 90)] == [60, 90]


def test_a_long_start_says_what_it_does(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(start_times, "PROGRESS_S", 0.01)
    caplog.set_level("INFO", "completion_server")
    ends_at = time.monotonic() + 30
    with start_times.progress("loading the models"):
        while not caplog.messages and time.monotonic() < ends_at:
            time.sleep(0.01)
    assert caplog.messages[0] == "loading the models: 0 s"
    num = len(caplog.messages)
    time.sleep(0.05)
    assert len(caplog.messages) == num, "it ends with the block"
