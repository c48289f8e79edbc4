"""Where the time of many requests went, stage by stage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from completion_server.client.completion import Answer

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a request's life over many requests."""

    name: str
    meaning: str
    percentiles_ms: tuple[float, ...]
    """As in PERCENTILES."""
    mean_ms: float
    share: float
    """Of the requests' whole time, 0 to 1; the stages' shares add up to 1."""
    starts_at: float
    """The shares of the stages before it."""

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for a machine."""
        return {"stage": self.name, **_named(self.percentiles_ms), "share": round(self.share, 4)}


_STAGES = (
    ("network", "to the server and back, as the client feels it"),
    ("admission", "checks, scheduling and streaming in the server"),
    ("queue", "waiting for a slot"),
    ("tokenise", "building the prompt's tokens"),
    ("prefill", "from the engine's receipt to its first token"),
    ("first decode", "from the first text to the next"),
    ("decode", "from there to the last token"),
)


def stage_times_ms(answer: Answer) -> tuple[float, ...]:
    """Split an answer's time over the stages, in their order; the parts add up to the whole.

    The server's own clock gives queue, tokenise, prefill and decode. What else the server took is admission, what the
    client waited beyond the server is network. The first decode step is seen from the client, so it is at most decode.
    """
    if answer.end is None:
        msg = "an answer that did not end has no stages"
        raise ValueError(msg)
    times = answer.end.timings
    first_step_ms = min(answer.first_step_ms, times.decode_ms)
    inside_ms = times.queue_ms + times.tokenise_ms + times.prefill_ms + times.decode_ms
    server_ms = max(times.total_ms, inside_ms)
    return (
        max(0.0, answer.total_ms - server_ms),
        server_ms - inside_ms,
        times.queue_ms,
        times.tokenise_ms,
        times.prefill_ms,
        first_step_ms,
        times.decode_ms - first_step_ms,
    )


def waterfall(answers: Sequence[Answer]) -> list[Stage]:
    """Return the stages of at least one ended answer."""
    columns = list(zip(*(stage_times_ms(answer) for answer in answers), strict=True))
    means = [math.fsum(column) / len(column) for column in columns]
    whole = math.fsum(means) or 1.0
    stages: list[Stage] = []
    for (name, meaning), column, mean in zip(_STAGES, columns, means, strict=True):
        before = stages[-1].starts_at + stages[-1].share if stages else 0.0
        stages.append(Stage(name, meaning, percentiles(column), mean, mean / whole, before))
    return stages


def percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return PERCENTILES of at least one value, by nearest rank: each is a value that occurred."""
    ranked = sorted(values)
    return tuple(ranked[max(0, math.ceil(len(ranked) * percent / 100) - 1)] for percent in PERCENTILES)


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return TTFT, total and rate over all answers, in percentiles."""
    columns = {
        "ttft_ms": [answer.ttft_ms for answer in answers if answer.ttft_ms is not None],
        "total_ms": [answer.total_ms for answer in answers],
        "tokens_per_s": [answer.tokens_per_s for answer in answers if answer.tokens_per_s is not None],
    }
    return {name: _named(percentiles(values)) if values else None for name, values in columns.items()}


def _named(values: Sequence[float]) -> dict[str, float]:
    return {f"p{percent}": round(value, 3) for percent, value in zip(PERCENTILES, values, strict=True)}
