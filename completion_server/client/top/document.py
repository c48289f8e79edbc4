"""One interval as an object for JSON output. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from completion_server.client.top.figures import PERCENTILES, Figures, Times, figures_of
from completion_server.client.top.poll import ServerState
from completion_server.client.top.table import breaker, changes_of, engine_state

_DIGITS = 4


def document(states: Sequence[ServerState], at: datetime) -> dict[str, Any]:
    """Return the servers, and the figures of all together; a figure without data is null."""
    return {
        "time": at.isoformat(timespec="milliseconds"),
        "servers": [_server(state) for state in states],
        "all": {"serving": sum(state.is_serving for state in states), **_figures(figures_of(changes_of(states)))},
    }


def _server(state: ServerState) -> dict[str, Any]:
    found: dict[str, Any] = {"address": state.address, "health": state.health or None, "problem": state.problem or None}
    status = state.status
    if status is not None:
        found |= {
            "region": status.region or None,
            "version": status.version,
            "engine_state": engine_state(status),
            "engine_restarts": status.engine_restarts,
            "draining": status.draining,
            "live_sessions": status.live_sessions,
            "queued_requests": status.queued_requests,
            "running_requests": status.running_requests,
            "slots": status.slots,
            "breaker": breaker(status) or None,
        }
    return found | _figures(figures_of([state.change] if state.change else []))


def _figures(figures: Figures | None) -> dict[str, Any]:
    if figures is None:
        return {"figures": None}
    plain = asdict(figures)
    plain["ttft_ms"] = _named(figures.ttft_ms)
    plain["stages_ms"] = {stage: _named(times) for stage, times in figures.stages_ms.items()}
    return {"figures": _rounded(plain)}


def _named(times: Times) -> dict[str, float | None]:
    return {f"p{share * 100:.0f}": value for share, value in zip(PERCENTILES, times, strict=True)}


def _rounded(value: Any) -> Any:  # noqa: ANN401 - any part of a JSON document
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, _DIGITS) if isinstance(value, float) else value
