"""The times of many requests, divided into stages."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from completion_client import Completion

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Stage:
    """The times of one stage over many requests."""

    name: str
    meaning: str
    percentiles_ms: tuple[float, ...]
    """One for each of PERCENTILES."""
    mean_ms: float
    share: float
    """Share of the requests' whole time, 0 to 1; the stages' shares add up to 1."""
    starts_at: float
    """Sum of the shares of the earlier stages."""

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON output."""
        return {"stage": self.name, **_named(self.percentiles_ms), "share": round(self.share, 4)}


_STAGES = (
    ("network", "to the server and back, measured by the client"),
    ("admission", "checks, scheduling and streaming in the server"),
    ("queue", "waiting for a slot"),
    ("tokenise", "building the prompt's tokens"),
    ("prefill", "from the engine's receipt to its first token"),
    ("first decode", "from the first text to the next"),
    ("decode", "from there to the last token"),
)


def stage_times_ms(completion: Completion) -> tuple[float, ...]:
    """Split a completion's time over the stages, in their order; the parts add up to the whole.

    The server's clock gives queue, tokenise, prefill and decode. The rest of the server's time is admission; the time
    that the client waited beyond the server's is network. The client measures the first decode step, which is therefore
    limited to decode.
    """
    if completion.end is None:
        msg = "a completion without an End has no stages"
        raise ValueError(msg)
    times = completion.end.timings
    first_step_ms = min(_first_step_ms(completion), times.decode_ms)
    inside_ms = times.queue_ms + times.tokenise_ms + times.prefill_ms + times.decode_ms
    server_ms = max(times.total_ms, inside_ms)
    return (
        max(0.0, completion.total_ms - server_ms),
        server_ms - inside_ms,
        times.queue_ms,
        times.tokenise_ms,
        times.prefill_ms,
        first_step_ms,
        times.decode_ms - first_step_ms,
    )


def _first_step_ms(completion: Completion) -> float:
    """Return the time from the first piece of text to the next event; 0 without text."""
    times_ms = completion.text_times_ms
    if not times_ms:
        return 0.0
    return (times_ms[1] if len(times_ms) > 1 else completion.total_ms) - times_ms[0]


def waterfall(completions: Sequence[Completion]) -> list[Stage]:
    """Return the stages of at least one ended completion."""
    columns = list(zip(*(stage_times_ms(each) for each in completions), strict=True))
    means = [math.fsum(column) / len(column) for column in columns]
    whole = math.fsum(means) or 1.0
    stages: list[Stage] = []
    for (name, meaning), column, mean in zip(_STAGES, columns, means, strict=True):
        before = stages[-1].starts_at + stages[-1].share if stages else 0.0
        stages.append(Stage(name, meaning, percentiles(column), mean, mean / whole, before))
    return stages


def percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return PERCENTILES of at least one value, by nearest rank: each is one of the values."""
    ranked = sorted(values)
    return tuple(ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] for percent in PERCENTILES)


def summary(completions: Sequence[Completion]) -> dict[str, Any]:
    """Return TTFT, total and rate over all completions, in percentiles."""
    columns = {
        "ttft_ms": [each.ttft_ms for each in completions if each.ttft_ms is not None],
        "total_ms": [each.total_ms for each in completions],
        "tokens_per_s": [each.tokens_per_s for each in completions if each.tokens_per_s is not None],
    }
    return {name: _named(percentiles(values)) if values else None for name, values in columns.items()}


def _named(values: Sequence[float]) -> dict[str, float]:
    return {f"p{percent}": round(value, 3) for percent, value in zip(PERCENTILES, values, strict=True)}
