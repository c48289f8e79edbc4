"""Proves the error rates of the test that takes a canary back by what its users do, on simulated rollouts.

One of four servers is the canary. Users differ: in how much they type, in how often a completion has text, is accepted
and survives, and from one quarter of an hour to the next. All change over the day. The test looks each minute for two
hours, longer than a rollout. Equal canaries show the false alarms, worse ones how many completions the test needs.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from scipy.stats import beta

from loadtest.bench.runner.benchmark import Options as BenchmarkOptions
from loadtest.bench.runner.benchmark import Result, benchmark, option
from loadtest.bench.runner.figures import shown, text_table
from loadtest.simulation.rollouts import (
    Rollout,
    Users,
    Variance,
    Verdict,
    variance_of_independent,
    variance_over_groups,
    verdict,
)

SIZES = (400, 1000, 2000)
"""Users of a region."""
EQUAL = "equal"
LOSSES = {
    EQUAL: (0.0, 0.0, 0.0),
    "accepted_20": (0.0, 0.2, 0.0),
    "accepted_40": (0.0, 0.4, 0.0),
    "with_text_20": (0.2, 0.0, 0.0),
    "survived_20": (0.0, 0.0, 0.2),
}
"""Canaries, by the loss in per cent of a share."""
SOAK_MIN = 45
"""The first pause of deploy/components/canary."""
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(BenchmarkOptions):
    equal: int = option(1500, "Rollouts of an equal canary, for each number of users.", click.IntRange(1))
    worse: int = option(150, "Rollouts of each worse one.", click.IntRange(1))
    minutes: int = option(120, "Minutes of a rollout.", click.IntRange(SOAK_MIN))
    processes: int = option(2, "Processes that simulate.", click.IntRange(1))


@benchmark(_Options)
def main(options: _Options, _console: Console) -> Result:
    """Simulate rollouts, and report how often and when the test takes a canary back.

    \b
    Example:
        python -m loadtest.bench.canary --equal 200 --worse 50
    """
    figures: dict[str, Any] = {"num_equal": options.equal, "num_worse": options.worse, "minutes": options.minutes}
    with ProcessPoolExecutor(options.processes) as pool:
        for users in SIZES:
            for name, losses in LOSSES.items():
                rollout = Rollout(Users(number=users), losses, minutes=options.minutes)
                number = options.equal if name == EQUAL else options.worse
                ends = list(pool.map(partial(_run, rollout), range(number), chunksize=5))
                found: Mapping[str, float | None] = _found(ends)
                if name == EQUAL:
                    independent = pool.map(
                        partial(_run, rollout, variance=variance_of_independent), range(options.worse), chunksize=5
                    )
                    found = _false_alarms(ends, list(independent))
                figures |= {f"{name}_{users}_{key}": value for key, value in found.items()}
    return Result(figures, [_table(figures)])


def _run(rollout: Rollout, seed: int, variance: Variance = variance_over_groups) -> Verdict:
    return verdict(*rollout.count(seed), variance)


def _false_alarms(ends: Sequence[Verdict], independent: Sequence[Verdict]) -> dict[str, float]:
    stopped, as_if_independent = (sum(each.minute is not None for each in of) for of in (ends, independent))
    return {
        "stopped": stopped / len(ends),
        "stopped_at_most": upper_bound(stopped, len(ends)),
        "stopped_as_if_independent": as_if_independent / len(independent),
    }


def upper_bound(hits: int, trials: int) -> float:
    """Return the one-sided 95% bound of a probability by Clopper and Pearson."""
    return float(beta.ppf(_CONFIDENCE, hits + 1, trials - hits)) if hits < trials else 1.0


def _found(ends: Sequence[Verdict]) -> dict[str, float | None]:
    minutes = [each.minute for each in ends if each.minute is not None]
    return {
        "found": len(minutes) / len(ends),
        "found_in_soak": sum(each <= SOAK_MIN for each in minutes) / len(ends),
        "shown_p50": quantile_of_found(ends, 0.5),
        "shown_p95": quantile_of_found(ends, 0.95),
    }


def quantile_of_found(ends: Sequence[Verdict], share: float) -> int | None:
    """Return the completions after which a share of all canaries was found; None if fewer were found at all."""
    numbers = sorted(each.num_shown for each in ends if each.minute is not None)
    needed = ceil(share * len(ends))
    return numbers[needed - 1] if needed <= len(numbers) else None


def _table(figures: dict[str, Any]) -> Table:
    rows: list[tuple[str, ...]] = []
    for users in SIZES:
        rows.append((f"{users}", EQUAL, f"{figures[f'{EQUAL}_{users}_stopped']:.2%}", "", "", ""))
        for name in LOSSES:
            if name != EQUAL:
                of = {key: figures[f"{name}_{users}_{key}"] for key in _KEYS}
                shares = (f"{of['found']:.0%}", f"{of['found_in_soak']:.0%}")
                rows.append((f"{users}", name, *shares, *(shown(of[key], 0) for key in ("shown_p50", "shown_p95"))))
    heads = ("users", "canary", "taken back", f"in {SOAK_MIN} min", "completions p50", "p95")
    return text_table("Canaries", heads, rows, num_words=2)


_KEYS = ("found", "found_in_soak", "shown_p50", "shown_p95")

if __name__ == "__main__":
    main()
