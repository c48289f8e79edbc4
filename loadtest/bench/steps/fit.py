"""Fits the duration of a step to its work. Pure.

T = base + a * generations + b * prompt tokens + c if there is a prompt, none of the terms below 0. A prompt that the
step ends is one of its generations: it gets a token, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from loadtest.bench.steps.measure import Shape


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The terms, in seconds."""

    base_s: float
    per_seq_s: float
    per_prompt_token_s: float
    prompts_s: float
    error: float
    """Median deviation of the fit from what was measured, relative to that."""

    def seconds(self, shape: Shape) -> float:
        """Return the duration of a step."""
        found = np.dot((self.base_s, self.per_seq_s, self.per_prompt_token_s, self.prompts_s), _terms(shape))
        return float(found)


def fit(seconds: Mapping[Shape, float]) -> StepTimes:
    """Return the terms whose durations come nearest to the given ones, relative to these."""
    rows = np.array([_terms(shape) for shape in seconds])
    measured = np.array(list(seconds.values()))
    terms, _residual = nnls(rows / measured[:, None], np.ones(len(measured)))
    errors = np.abs(rows @ terms / measured - 1)
    base_s, per_seq_s, per_prompt_token_s, prompts_s = (float(each) for each in terms)
    return StepTimes(base_s, per_seq_s, per_prompt_token_s, prompts_s, float(np.median(errors)))


def _terms(shape: Shape) -> tuple[float, ...]:
    return 1.0, shape.num_decoding + shape.num_prompts, shape.prompt_tokens, float(shape.num_prompts > 0)
