"""Fits the duration of a step to its work. Pure.

T = base + a * generations + b * prompt tokens + c if there is a prompt, none of the terms below 0. A prompt that the
step ends is one of its generations: it gets a token, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from completion_server.engine.scripted.model import ServiceTimes
from loadtest.bench.steps.measure import StepWork

_NUM_TERMS = 4


class FitError(Exception):
    """The measured steps do not determine all terms."""


@dataclass(frozen=True, slots=True)
class StepFit:
    """The terms as the service times of a scripted engine."""

    times: ServiceTimes
    error: float
    """Median deviation of the fit from what was measured, relative to that."""

    def seconds(self, work: StepWork) -> float:
        """Return the duration of a step."""
        return self.times.step_s(work.prompt_tokens, work.num_decoding, 0, work.num_prompts)


def fit(seconds: Mapping[StepWork, float]) -> StepFit:
    """Return the terms whose durations come nearest to the given ones, relative to these.

    Raises:
        FitError: the steps are too few or too similar.

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
    times = ServiceTimes(
        step_base_s=base_s,
        prefill_base_s=prompts_s,
        prefill_per_seq_s=per_seq_s,
        prefill_per_token_s=per_prompt_token_s,
        decode_per_seq_s=per_seq_s,
    )
    return StepFit(times, float(np.median(errors)))


def _terms(work: StepWork) -> tuple[float, ...]:
    return 1.0, work.num_decoding + work.num_prompts, work.prompt_tokens, float(work.num_prompts > 0)
