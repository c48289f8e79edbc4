"""Fits the duration of a step to its work, and describes the fit in the document that the simulation reads.

T = base + a * generations + b * prompt tokens + c if there is a prompt, none of the terms below 0. A prompt that the
step ends is one of its generations: it gets a token, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from loadtest.bench.runner.benchmark import processor
from loadtest.bench.steps.measure import CONTEXT_TOKENS, StepWork

_NUM_TERMS = 4


class FitError(Exception):
    """The measured steps do not determine all terms."""


@dataclass(frozen=True, slots=True)
class StepFit:
    """The terms, in seconds."""

    base_s: float
    per_seq_s: float
    per_prompt_token_s: float
    prompts_s: float
    error: float
    """Median deviation of the fit from what was measured, relative to that."""

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step."""
        terms_s = (self.base_s, self.per_seq_s, self.per_prompt_token_s, self.prompts_s)
        return float(np.dot(terms_s, _terms(work)))

    @property
    def times(self) -> dict[str, float]:
        """The terms above 0 as the service times of a scripted engine."""
        found = {
            "step_base_s": self.base_s,
            "prefill_base_s": self.prompts_s,
            "prefill_per_seq_s": self.per_seq_s,
            "prefill_per_token_s": self.per_prompt_token_s,
            "decode_per_seq_s": self.per_seq_s,
        }
        return {name: round(seconds, 8) for name, seconds in found.items() if seconds}


def fit(seconds: Mapping[StepWork, float]) -> StepFit:
    """Return the terms whose durations come nearest to the given ones, relative to these.

    Raises FitError if the steps are too few or too similar.
    """
    rows = np.array([_terms(work) for work in seconds])
    if len(rows) < _NUM_TERMS or np.linalg.matrix_rank(rows) < _NUM_TERMS:
        msg = (
            f"{len(rows)} kinds of steps were measured, too few or too similar for a fit of {_NUM_TERMS} terms; "
            "engine.max_num_seqs must be at least 2, and the engine's steps must take time"
        )
        raise FitError(msg)
    measured = np.array(list(seconds.values()))
    terms, _residual = nnls(rows / measured[:, None], np.ones(len(measured)))
    errors = np.abs(rows @ terms / measured - 1)
    base_s, per_seq_s, per_prompt_token_s, prompts_s = (float(each) for each in terms)
    return StepFit(base_s, per_seq_s, per_prompt_token_s, prompts_s, float(np.median(errors)))


def _terms(work: StepWork) -> tuple[float, ...]:
    return 1.0, work.num_decoding + work.num_prompts, work.prompt_tokens, float(work.num_prompts > 0)


def document_of(
    engine: Mapping[str, Any], typical: Mapping[StepWork, float], fitted: StepFit, *, enforce_eager: bool | None
) -> dict[str, Any]:
    """Return the document of the engine with the given settings.

    `enforce_eager` is vLLM's argument, None for an engine of another kind.
    """
    return {
        "source": "python -m loadtest.bench.steps",
        "machine": processor(),
        "date": datetime.now(UTC).date().isoformat(),
        "model": Path(engine["model"]).name or engine["kind"],
        "enforce_eager": enforce_eager,
        "num_speculative_tokens": engine["num_speculative_tokens"],
        "context_tokens": CONTEXT_TOKENS,
        "max_num_seqs": engine["max_num_seqs"],
        "times": fitted.times,
        "median_error": round(fitted.error, 4),
        "points": [
            [work.num_decoding, work.num_prompts, work.prompt_tokens, round(seconds * 1000, 3)]
            for work, seconds in typical.items()
        ],
    }
