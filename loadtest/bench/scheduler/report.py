"""The figures and the tables of the scheduler benchmark, from its runs."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from loadtest.bench.runner.figures import is_in_time, is_seen, percentile, shown, text_table
from loadtest.driving.driver import Run
from loadtest.targets.record import Outcome, Result
from loadtest.traffic.sections import CriteriaSettings

SCHEDULER, PLAIN, VLLM_SERVE = "scheduler", "plain", "vllm serve"
"""The targets."""

Results = dict[float, dict[str, list[Run]]]
"""Runs by load, as a multiple of the capacity, and target; the same place in two lists is the same trace."""
Figures = Mapping[float, Mapping[str, Mapping[str, Any]]]
"""Figures by load, target and name."""

_HEADLINE_LOAD, _TOP_LOAD = 2.0, 4.0


def load_figures(runs: Sequence[Run], criteria: CriteriaSettings) -> dict[str, Any]:
    """Return the figures of one target at one load, from one or more runs; nan for missing data.

    Times count from the intended time. Requests without visible text are in no percentile. `pause_empty_share` is of
    whole answers without visible text, `wasted_token_share` of generated tokens that belong to no seen completion.
    """
    results = [result for run in runs for result in run.results]
    pauses = [result for result in results if result.request.is_pause]
    seen = [[each for each in run.results if is_seen(each, criteria)] for run in runs]
    duration_s = sum(run.duration_s for run in runs)
    generated = sum(run.generated_tokens for run in runs)
    seen_tokens = sum(each.completion_tokens for found in seen for each in found)
    outcomes = Counter(result.outcome for result in results)
    pause_ttft_ms, num_seen = _ttft_ms(pauses), sum(map(len, seen))
    return {
        "num_requests": len(results),
        "num_pauses": len(pauses),
        "num_seen": num_seen,
        "offered_per_s": len(results) / duration_s,
        "seen_per_s": num_seen / duration_s,
        "seen_per_s_by_round": [len(found) / run.duration_s for found, run in zip(seen, runs, strict=True)],
        "pause_answered_share": _ratio(sum(is_in_time(each, criteria) for each in pauses), len(pauses)),
        "pause_without_text_share": _ratio(len(pauses) - len(pause_ttft_ms), len(pauses)),
        "pause_empty_share": _ratio(sum(each.outcome is Outcome.EMPTY for each in pauses), len(pauses)),
        "pause_ttft_ms_p50": percentile(pause_ttft_ms, 50),
        "pause_ttft_ms_p95": percentile(pause_ttft_ms, 95),
        "pause_ttft_ms_p99": percentile(pause_ttft_ms, 99),
        "answered_ttft_ms_p95": percentile(_ttft_ms(results), 95),
        "shed_share": _ratio(outcomes[Outcome.SHED], len(results)),
        "superseded_share": _ratio(outcomes[Outcome.SUPERSEDED], len(results)),
        "hung_up_share": _ratio(outcomes[Outcome.HUNG_UP], len(results)),
        "wasted_token_share": 1 - _ratio(seen_tokens, generated),
        "generated_tokens": generated,
        "generator_lag_ms_p99": percentile([result.lag_s * 1000 for result in results], 99),
        "outcomes": {kind.value: outcomes[kind] for kind in Outcome if outcomes[kind]},
    }


def figures(results: Results, criteria: CriteriaSettings) -> Figures:
    """Return the figures by load and target."""
    return {
        load: {name: load_figures(runs, criteria) for name, runs in by_target.items()}
        for load, by_target in results.items()
    }


def headline(found: Figures, results: Results) -> dict[str, float]:
    """Return the headline figures; nan for a load that was not run, or a ratio to 0."""

    def at(load: float, target: str, name: str = "seen_per_s") -> float:
        value: float = found.get(load, {}).get(target, {}).get(name, math.nan)
        return value

    ours = at(_HEADLINE_LOAD, SCHEDULER)
    peak = max((at(load, SCHEDULER) for load in found), default=math.nan)
    runs = [run for by_target in results.values() for runs in by_target.values() for run in runs]
    return {
        "seen_ratio_2x_to_plain": _ratio(ours, at(_HEADLINE_LOAD, PLAIN)),
        "seen_ratio_2x_to_vllm_serve": _ratio(ours, at(_HEADLINE_LOAD, VLLM_SERVE)),
        "seen_4x_to_peak": _ratio(at(_TOP_LOAD, SCHEDULER), peak),
        "answered_ttft_p95_ms_2x": at(_HEADLINE_LOAD, SCHEDULER, "answered_ttft_ms_p95"),
        "pause_answered_share_2x": at(_HEADLINE_LOAD, SCHEDULER, "pause_answered_share"),
        "wasted_token_share_2x": at(_HEADLINE_LOAD, SCHEDULER, "wasted_token_share"),
        "generator_lag_p99_ms": percentile([each.lag_s * 1000 for run in runs for each in run.results], 99),
    }


def as_json(found: Figures) -> dict[str, Any]:
    """Return all figures, nested by load and target."""
    return {f"{load:g}": by_target for load, by_target in found.items()}


def first_errors(results: Results) -> dict[str, str]:
    """Return the first error of each target."""
    found: dict[str, str] = {}
    for by_target in results.values():
        for name, runs in by_target.items():
            errors = (result.error for run in runs for result in run.results if result.outcome is Outcome.ERROR)
            if (error := next(errors, None)) is not None:
                found.setdefault(name, error or "no message")
    return found


def tables(found: Figures, headlines: Mapping[str, float]) -> list[Table]:
    """Return the tables of all targets and of their comparison."""
    rows = [
        (
            f"{load:g}",
            name,
            f"{each['offered_per_s']:.1f}",
            f"{each['seen_per_s']:.2f}",
            _percent(each["pause_answered_share"]),
            shown(each["pause_ttft_ms_p50"], 0),
            shown(each["pause_ttft_ms_p95"], 0),
            shown(each["pause_ttft_ms_p99"], 0),
            shown(each["answered_ttft_ms_p95"], 0),
            _percent(each["shed_share"]),
            _percent(each["superseded_share"] + each["hung_up_share"]),
            _percent(each["wasted_token_share"]),
        )
        for load, by_target in found.items()
        for name, each in by_target.items()
    ]
    headings = (
        "load", "target", "asked/s", "seen/s", "pauses in time", "pause p50", "p95", "p99", "any p95", "shed",
        "dropped", "wasted",
    )  # fmt: skip
    compared = [
        (name, "nothing to compare with" if math.isnan(value) and name.startswith("seen") else shown(value))
        for name, value in headlines.items()
    ]
    return [
        text_table("Loads are multiples of what the engine can serve; times in ms", headings, rows, num_words=2),
        text_table("The scheduler against the others", ("", ""), compared),
    ]


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.0%}"


def _ttft_ms(results: Sequence[Result]) -> list[float]:
    return [result.ttft_s * 1000 for result in results if result.ttft_s is not None]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
