"""The figures, the table and the picture of the capacity benchmark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from loadtest.bench.capacity.trials import crossing
from loadtest.bench.peers.llama_server import LlamaServer
from loadtest.bench.peers.vllm_serve import VllmServe
from loadtest.bench.runner.figures import percentile, text_table
from loadtest.bench.runner.figures import ratio as ratio_of
from loadtest.report.canvas import bars_svg
from loadtest.search import Trial
from loadtest.tuning.choice import Estimate

OURS, OURS_UNCACHED = "this server", "this server, completion cache off"
VLLM, VLLM_SAME_PROMPTS, LLAMA = VllmServe.name, "vllm serve, our prompts", LlamaServer.name
NAMES = (OURS, OURS_UNCACHED, VLLM, VLLM_SAME_PROMPTS, LLAMA)

_FIGURES = {
    OURS_UNCACHED: ("editors_{}_cache_off", "ratio_{}_cache_off"),
    VLLM: ("editors_{}_vllm_serve", "ratio_{}"),
    VLLM_SAME_PROMPTS: ("editors_{}_same_prompts", "ratio_{}_same_prompts"),
    LLAMA: ("editors_{}_llama_cpp", "ratio_{}_llama_cpp"),
}
"""The names of another contestant's editors, and of this server's relative to them, by context."""
_LEAST_EDITORS = 0.5
"""Stands for a capacity of 0, of which there is no ratio."""

Capacities = Mapping[str, Sequence[float]]
"""Editors by contestant, one number for each round; the same place is the same trace."""


@dataclass(slots=True)
class Findings:
    """What was found in one context."""

    context: str
    about: str
    """What the context is, for a reader."""
    trials: dict[str, list[tuple[Trial, ...]]] = field(default_factory=dict)
    """The trials of each contestant, by round."""

    def add(self, trials: Mapping[str, tuple[Trial, ...]]) -> None:
        """Add a round."""
        for name, found in trials.items():
            self.trials.setdefault(name, []).append(found)

    @property
    def capacities(self) -> dict[str, list[float]]:
        """The editors that each contestant served, by round."""
        return {name: [crossing(each) for each in rounds] for name, rounds in self.trials.items()}

    @property
    def is_decided(self) -> bool:
        """Whether this server differs from each other server beyond noise; never, if there is no other one.

        What its completion cache gains may be too little to tell, and decides nothing.
        """
        capacities = {name: found for name, found in self.capacities.items() if name != OURS_UNCACHED}
        return len(capacities) > 1 and is_decided(capacities, OURS)


def editors(capacities: Sequence[float]) -> Estimate:
    """Return the geometric mean over rounds, with an interval if there are enough rounds."""
    return ratio(capacities, [1.0] * len(capacities))


def ratio(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the geometric mean of first / second over rounds; the interval is nan with too few rounds."""
    return ratio_of(first, second, _LEAST_EDITORS)


def is_decided(capacities: Capacities, ours: str) -> bool:
    """Return whether our server's ratio to each other contestant differs from 1 beyond noise."""
    found = [ratio(capacities[ours], theirs) for name, theirs in capacities.items() if name != ours]
    return all(each.low > 1 or each.high < 1 for each in found)


def headline(found: Sequence[Findings]) -> dict[str, Estimate | float]:
    """Return the headline figures; a contestant that did not take part has none.

    The generator's lag is the median over all trials of their 99th percentile.
    """
    figures: dict[str, Estimate | float] = {}
    for each in found:
        capacities = each.capacities
        figures[f"editors_{each.context}"] = editors(capacities[OURS])
        for name, (own, relative) in _FIGURES.items():
            if name in capacities:
                figures[own.format(each.context)] = editors(capacities[name])
                figures[relative.format(each.context)] = ratio(capacities[OURS], capacities[name])
    trials = [trial for each in found for rounds in each.trials.values() for trials in rounds for trial in trials]
    lag_ms = percentile([trial.figures["lag_ms_p99"] for trial in trials], 50)
    return figures | {"generator_lag_ms_p99": lag_ms}


def details(found: Sequence[Findings]) -> dict[str, Any]:
    """Return the capacities of all contestants and every trial, nested by context and contestant."""
    return {each.context: {name: _contestant(each, name) for name in each.trials} for each in found}


def table(found: Sequence[Findings]) -> Table:
    """Return the editors of each contestant and the ratio of this server's to them."""
    rows = []
    for each in found:
        capacities = each.capacities
        for name, own in capacities.items():
            served, relative = editors(own), ratio(capacities[OURS], own)
            beside = ("", "") if name == OURS else (f"{relative.value:.2f}", _span(relative, 2))
            rows.append((each.about, name, f"{served.value:.1f}", _span(served, 1), *beside))
    headings = ("context", "contestant", "editors", "interval", "this server's, relative", "interval")
    return text_table("Editors whose pauses are answered in time", headings, tuple(rows), num_words=2)


def picture(found: Sequence[Findings]) -> str:
    """Return the chart as an SVG file."""
    series = {
        name: [(each.value, each.low, each.high) for each in (editors(one.capacities[name]) for one in found)]
        for name in found[0].trials
    }
    title = "Editors whose pauses get their first text in time"
    return bars_svg(series, [each.about for each in found], "editors", title)


def _contestant(found: Findings, name: str) -> dict[str, Any]:
    capacities = found.capacities[name]
    return {
        "editors": editors(capacities),
        "editors_by_round": capacities,
        "trials": [[{"editors": trial.sessions, **trial.figures} for trial in trials] for trials in found.trials[name]],
    }


def _span(found: Estimate, digits: int) -> str:
    return "" if math.isnan(found.low) else f"{found.low:.{digits}f} to {found.high:.{digits}f}"
