import pytest

from completion_server.engine.settings import EngineSettings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hang_timeout_s": 90.0}, r"step_timeout_s: must be at least hang_timeout_s \(90\), got 60"),
        ({"step_timeout_s": float("nan")}, "step_timeout_s: must be above 0, got nan"),
        ({"quarantine_s": -1.0}, "quarantine_s: must be at least 0, got -1.0"),
        ({"restart_backoff_reset_s": float("nan")}, "restart_backoff_reset_s: must be at least 0, got nan"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineSettings(**values)  # type: ignore[arg-type]
