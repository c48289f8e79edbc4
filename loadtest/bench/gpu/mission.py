"""The figures of one run beside the goals of the server. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from loadtest.bench.runner.figures import text_table

NOT_RUN = "not run"


def rows(found: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return (figure, without a draft, as served, bar) for the parts that were run."""
    sessions = found.get("sessions") or {}
    figures = sessions.get("figures") or {}
    speculation = found.get("speculation") or {}
    plain, best = _of_a_request(speculation.get("no draft")), _best(speculation)
    return [
        ("TTFT p50 at the objective, ms", "", _number(figures.get("pause_ttft_ms_p50")), "< 100"),
        ("TTFT p95 at the objective, ms", "", _number(figures.get("pause_ttft_ms_p95")), "< 200"),
        ("tokens/s of a request, alone", _number(plain), _number(best), "> 100"),
        ("concurrent sessions at the objective", "", _number(sessions.get("sessions")), "10,000"),
        ("HumanEval pass@1", "", "not measured: no weights", "> 45%"),
        ("cost of a completion seen, $", "", _number(figures.get("usd_per_completion"), 6), "< 0.0005"),
    ]


def table(found: Mapping[str, Any]) -> Table:
    """Return the figures as a table."""
    headings = ("figure", "no draft", "as served", "bar")
    return text_table("a 13B-sized INT8 target on this GPU", headings, tuple(rows(found)), num_words=4)


def _best(speculation: Mapping[str, Any]) -> float | None:
    values = [_of_a_request(entries) for name, entries in speculation.items() if name != "no draft"]
    return max((value for value in values if value is not None), default=None)


def _of_a_request(entries: Mapping[str, Any] | None) -> float | None:
    return entries["1"]["tokens_per_s_of_a_request"] if entries and "1" in entries else None


def _number(value: float | None, digits: int = 0) -> str:
    return NOT_RUN if value is None or math.isnan(value) else f"{value:,.{digits}f}"
