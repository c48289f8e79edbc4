"""The figures and tables of the scheduler benchmark, from its runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from loadtest.bench.runner.figures import percentile, rounded, shown, text_table
from loadtest.driving.driver import Run
from loadtest.targets.record import Outcome, Result

SCHEDULER, PLAIN, VLLM_SERVE = "scheduler", "plain", "vllm serve"
"""The targets."""

Results = dict[float, dict[str, list[Run]]]
"""Runs by load, as a multiple of the capacity, and target; the same place in two lists is the same trace."""

_HEADLINE_LOAD, _TOP_LOAD = 2.0, 4.0


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria of a seen completion."""

    within_s: float = 0.25
    """Largest time from the intended time to the first visible text."""
    before_next_key_s: float = 0.2
    """Smallest time from the first visible text to the user's next key."""

    def is_in_time(self, result: Result) -> bool:
        """Return whether the first text came in time."""
        return result.ttft_s is not None and result.ttft_s <= self.within_s

    def is_seen(self, result: Result) -> bool:
        """Return whether the user saw the completion."""
        text_at_s = result.first_text_at_s
        if text_at_s is None or not self.is_in_time(result):
            return False
        return result.request.next_key_at_s - text_at_s >= self.before_next_key_s


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """The figures of one target at one load. Times count from the intended time; nan for missing data."""

    num_requests: int
    num_pauses: int
    num_seen: int
    offered_per_s: float
    seen_per_s: float
    seen_per_s_by_round: tuple[float, ...]
    pause_answered_share: float
    """Share of pause requests with visible text in time."""
    pause_without_text_share: float
    """Share of pause requests without visible text; they are in no percentile."""
    pause_empty_share: float
    """Share of pause requests with a whole answer but no visible text."""
    pause_ttft_ms_p50: float
    pause_ttft_ms_p95: float
    pause_ttft_ms_p99: float
    answered_ttft_ms_p95: float
    """95th percentile over all requests with visible text, regardless of their outcome."""
    shed_share: float
    superseded_share: float
    hung_up_share: float
    wasted_token_share: float
    """Share of generated tokens that belong to no seen completion."""
    generated_tokens: float
    generator_lag_ms_p99: float
    outcomes: Mapping[str, int]

    @classmethod
    def of(cls, runs: Sequence[Run], criteria: Criteria) -> "LoadFigures":
        """Sum up one or more runs."""
        results = [result for run in runs for result in run.results]
        pauses = [result for result in results if result.request.is_pause]
        seen = [[each for each in run.results if criteria.is_seen(each)] for run in runs]
        duration_s = sum(run.duration_s for run in runs)
        generated = sum(run.generated_tokens for run in runs)
        seen_tokens = sum(each.completion_tokens for found in seen for each in found)
        outcomes = {kind: sum(result.outcome is kind for result in results) for kind in Outcome}
        pause_ttft_ms = _ttft_ms(pauses)
        num_seen = sum(map(len, seen))
        return cls(
            num_requests=len(results),
            num_pauses=len(pauses),
            num_seen=num_seen,
            offered_per_s=len(results) / duration_s,
            seen_per_s=num_seen / duration_s,
            seen_per_s_by_round=tuple(len(found) / run.duration_s for found, run in zip(seen, runs, strict=True)),
            pause_answered_share=_ratio(sum(map(criteria.is_in_time, pauses)), len(pauses)),
            pause_without_text_share=_ratio(len(pauses) - len(pause_ttft_ms), len(pauses)),
            pause_empty_share=_ratio(sum(each.outcome is Outcome.EMPTY for each in pauses), len(pauses)),
            pause_ttft_ms_p50=percentile(pause_ttft_ms, 50),
            pause_ttft_ms_p95=percentile(pause_ttft_ms, 95),
            pause_ttft_ms_p99=percentile(pause_ttft_ms, 99),
            answered_ttft_ms_p95=percentile(_ttft_ms(results), 95),
            shed_share=_ratio(outcomes[Outcome.SHED], len(results)),
            superseded_share=_ratio(outcomes[Outcome.SUPERSEDED], len(results)),
            hung_up_share=_ratio(outcomes[Outcome.HUNG_UP], len(results)),
            wasted_token_share=1 - _ratio(seen_tokens, generated),
            generated_tokens=generated,
            generator_lag_ms_p99=percentile([result.lag_s * 1000 for result in results], 99),
            outcomes={kind.value: count for kind, count in outcomes.items() if count},
        )

    def as_json(self) -> dict[str, Any]:
        """Return the rounded figures, None for nan."""
        return {name: _jsonable(value) for name, value in asdict(self).items()}


def figures(results: Results, criteria: Criteria) -> dict[float, dict[str, LoadFigures]]:
    """Return the figures by load and target."""
    return {
        load: {name: LoadFigures.of(runs, criteria) for name, runs in by_target.items()}
        for load, by_target in results.items()
    }


def headline(found: Mapping[float, Mapping[str, LoadFigures]], results: Results) -> dict[str, float | None]:
    """Return the headline figures; None for a load that was not run, or a ratio to 0."""
    seen = {load: {name: each.seen_per_s for name, each in by_target.items()} for load, by_target in found.items()}
    at = seen.get(_HEADLINE_LOAD, {})
    ours = found.get(_HEADLINE_LOAD, {}).get(SCHEDULER)
    peak = max((by_target.get(SCHEDULER, math.nan) for by_target in seen.values()), default=math.nan)
    lags_ms = [
        result.lag_s * 1000
        for by_target in results.values()
        for runs in by_target.values()
        for run in runs
        for result in run.results
    ]
    named = {
        "seen_ratio_2x_to_plain": _ratio(at.get(SCHEDULER, math.nan), at.get(PLAIN, math.nan)),
        "seen_ratio_2x_to_vllm_serve": _ratio(at.get(SCHEDULER, math.nan), at.get(VLLM_SERVE, math.nan)),
        "seen_4x_to_peak": _ratio(seen.get(_TOP_LOAD, {}).get(SCHEDULER, math.nan), peak),
        "answered_ttft_p95_ms_2x": ours.answered_ttft_ms_p95 if ours else math.nan,
        "pause_answered_share_2x": ours.pause_answered_share if ours else math.nan,
        "wasted_token_share_2x": ours.wasted_token_share if ours else math.nan,
        "generator_lag_p99_ms": percentile(lags_ms, 99),
    }
    return {name: rounded(value) for name, value in named.items()}


def as_json(found: Mapping[float, Mapping[str, LoadFigures]]) -> dict[str, Any]:
    """Return all figures, nested by load and target."""
    return {
        f"{load:g}": {name: each.as_json() for name, each in by_target.items()} for load, by_target in found.items()
    }


def first_errors(results: Results) -> dict[str, str]:
    """Return the first error of each target."""
    found: dict[str, str] = {}
    for by_target in results.values():
        for name, runs in by_target.items():
            errors = (result.error for run in runs for result in run.results if result.outcome is Outcome.ERROR)
            if (error := next(errors, None)) is not None:
                found.setdefault(name, error or "no message")
    return found


def headline_table(headlines: Mapping[str, float | None]) -> Table:
    """Return the comparison as a table."""
    rows = []
    for name, value in headlines.items():
        is_ratio_to_nothing = value is None and name.startswith("seen")
        rows.append((name, "nothing to compare with" if is_ratio_to_nothing else shown(value)))
    return text_table("The scheduler against the others", ("", ""), tuple(rows))


def targets_table(found: Mapping[float, Mapping[str, LoadFigures]]) -> Table:
    """Return the figures of all targets as a table."""
    rows = tuple(
        (
            f"{load:g}",
            name,
            f"{each.offered_per_s:.1f}",
            f"{each.seen_per_s:.2f}",
            _percent(each.pause_answered_share),
            shown(each.pause_ttft_ms_p50, 0),
            shown(each.pause_ttft_ms_p95, 0),
            shown(each.pause_ttft_ms_p99, 0),
            shown(each.answered_ttft_ms_p95, 0),
            _percent(each.shed_share),
            _percent(each.superseded_share + each.hung_up_share),
            _percent(each.wasted_token_share),
        )
        for load, by_target in found.items()
        for name, each in by_target.items()
    )
    headings = (
        "load", "target", "asked/s", "seen/s", "pauses in time", "pause p50", "p95", "p99", "any p95", "shed",
        "dropped", "wasted",
    )  # fmt: skip
    return text_table("Loads are multiples of what the engine can serve; times in ms", headings, rows, num_words=2)


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def _ttft_ms(results: Sequence[Result]) -> list[float]:
    return [result.ttft_s * 1000 for result in results if result.ttft_s is not None]


def _ratio(stats: float, whole: float) -> float:
    return stats / whole if whole else math.nan


def _jsonable(value: Any) -> Any:  # noqa: ANN401 - a field of Figures
    if isinstance(value, tuple):
        return [rounded(each) for each in value]
    return rounded(value) if isinstance(value, float) else value
