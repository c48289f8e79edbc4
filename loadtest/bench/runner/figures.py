"""Samples of single requests, their summary over blocks, and figures over rounds with their intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loadtest.targets.record import Result
from loadtest.traffic.sections import CriteriaSettings
from loadtest.tuning.choice import MIN_ROUNDS, Estimate, ratio_of_rounds

_MIN_TOKENS_FOR_RATE = 8
"""With fewer tokens the rate depends on the clock's resolution."""

_DIGITS = 6
"""Significant digits of a figure in JSON."""
_STYLES = {"FAILED": "bold red", "passed": "green"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as its caller measured it."""

    ttft_ms: float | None
    """Time from the request to the first text; None without text."""
    total_ms: float
    num_tokens: int
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    drafted_tokens: int = 0
    accepted_draft_tokens: int = 0
    decode_ms: float | None = None
    """Time from the first token to the last, if the server reports it; the server may hold text back."""

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of the tokens after the first; None for a short completion."""
        decode_ms = self.decode_ms
        if decode_ms is None and self.ttft_ms is not None:
            decode_ms = self.total_ms - self.ttft_ms
        if not decode_ms or self.num_tokens < _MIN_TOKENS_FOR_RATE:
            return None
        return (self.num_tokens - 1) * 1000 / decode_ms


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that ran together."""

    samples: tuple[Sample, ...]
    """Samples in the order of the prompts."""
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all requests per second of the block."""
        return sum(sample.num_tokens for sample in self.samples) / self.wall_s


def summary(blocks: Sequence[Block]) -> dict[str, float]:
    """Summarise one or more blocks of one contestant; nan for missing data.

    `stream_tokens_per_s_p50` is the median rate of one request after its first token, `tokens_per_s_p50` the median
    over blocks of the rate of all requests together. `cached_share` is of the prompt tokens, `acceptance` of the
    drafted ones.
    """
    samples = [sample for block in blocks for sample in block.samples]
    ttft_ms = [sample.ttft_ms for sample in samples if sample.ttft_ms is not None]
    return {
        "ttft_ms_p50": percentile(ttft_ms, 50),
        "ttft_ms_p95": percentile(ttft_ms, 95),
        "stream_tokens_per_s_p50": percentile([rate for each in samples if (rate := each.tokens_per_s)], 50),
        "tokens_per_s_p50": percentile([block.tokens_per_s for block in blocks], 50),
        "cached_share": _ratio(sum(s.cached_prompt_tokens for s in samples), sum(s.prompt_tokens for s in samples)),
        "acceptance": _ratio(sum(s.accepted_draft_tokens for s in samples), sum(s.drafted_tokens for s in samples)),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Return an interpolated percentile; nan for no values."""
    return float(np.percentile(values, percent)) if values else float("nan")


def median_of_pairs(first: Iterable[float | None], second: Iterable[float | None], *, ratio: bool = False) -> float:
    """Return the median of first - second, or of first / second, over pairs measured one after the other.

    A slow drift of the machine cancels. A pair with a None does not count.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return percentile([a / b if ratio else a - b for a, b in pairs], 50)


def is_in_time(result: Result, criteria: CriteriaSettings) -> bool:
    """Return whether the first visible text came in time, counted from the intended time."""
    return result.ttft_s is not None and result.ttft_s <= criteria.within_ms / 1000


def is_seen(result: Result, criteria: CriteriaSettings) -> bool:
    """Return whether the user saw the completion: in time, and for long enough before the next key."""
    text_at_s = result.first_text_at_s
    if text_at_s is None or not is_in_time(result, criteria):
        return False
    return result.request.next_key_at_s - text_at_s >= criteria.before_next_key_ms / 1000


def for_json(figures: Mapping[Any, Any]) -> dict[str, Any]:
    """Return rounded figures, at any depth; None for nan and infinity. An estimate has its interval beside it."""
    found: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Estimate):
            found |= for_json({name: value.value, f"{name}_low": value.low, f"{name}_high": value.high})
        else:
            found[str(name)] = _for_json(value)
    return found


def _for_json(value: Any) -> Any:  # noqa: ANN401 - a figure, or several
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return for_json(value)
    return [_for_json(each) for each in value] if isinstance(value, list | tuple) else value


def report_console() -> Console:
    """Return the console for tables; without a terminal it has a fixed width."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def ratio(first: Sequence[float], second: Sequence[float], least: float = 0.0) -> Estimate:
    """Return the geometric mean of first / second over rounds. Values below `least` count as `least`.

    It is nan if a value is 0. The interval is nan with too few rounds.
    """
    above, below = (np.maximum(np.array(each, dtype=float), least) for each in (first, second))
    if not (above.all() and below.all()):
        return Estimate(float("nan"), float("nan"), float("nan"))
    if len(above) >= MIN_ROUNDS:
        return ratio_of_rounds(above, below)
    return Estimate(float(np.exp(np.mean(np.log(above / below)))), float("nan"), float("nan"))


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return sum(values) / len(values)


def text_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], *, num_words: int = 1) -> Table:
    """Return a table. The first `num_words` columns are words, the others numbers."""
    found = Table(title=escape(title), title_justify="left")
    for place, heading in enumerate(headings):
        found.add_column(escape(heading), justify="left" if place < num_words else "right", overflow="fold")
    for row in rows:
        found.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return found


def figure_table(title: str, figures: Mapping[str, Any]) -> Table:
    """Return a table of figures by name."""
    return text_table(title, ("", ""), tuple((name, shown(value)) for name, value in for_json(figures).items()))


def shown(value: float | None, digits: int = 3) -> str:
    """Return a figure for a table."""
    return "-" if value is None or math.isnan(value) else f"{value:,.{digits}f}"
