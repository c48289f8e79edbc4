"""Fits a model of acceptance and of step times to a sweep, and predicts goodput with it. Pure.

Acceptance: with K draft tokens a step yields 1 + S(1) + ... + S(K) tokens on average. S(i) is the share of drafts whose
first i tokens are all accepted; it falls with i. Each K gives one such sum, so a sweep over K determines every S(i).

Step time: T(b, K) = c0 + c1 b + (K > 0) c2 + K c3 + K b c4, none of the terms below 0: a step, its generations, a draft
model at work at all, one pass of it for each draft token, and the verification of each generation's draft tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from loadtest.tuning.blocks import Array, Block, Blocks

_NUM_TERMS = 5


@dataclass(frozen=True, slots=True)
class AcceptanceFit:
    """The fitted acceptance of draft tokens."""

    survival: tuple[float, ...]
    """For each position, the share of drafts that are accepted up to and including it."""

    @property
    def by_position(self) -> tuple[float, ...]:
        """For each position, the acceptance rate given that all earlier positions were accepted."""
        before = (1.0, *self.survival)
        return tuple(each / last if last else 0.0 for each, last in zip(self.survival, before, strict=False))

    def length(self, k: int) -> float:
        """Return the mean tokens per step with K draft tokens, the target's own token included."""
        return 1.0 + sum(self.survival[:k])


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """The fitted duration of steps."""

    terms: tuple[float, ...]
    """c0 to c4, in seconds."""

    def seconds(self, batch: float, k: int) -> float:
        """Return T(batch, K)."""
        return float(np.dot(self.terms, _terms(batch, k)))


@dataclass(frozen=True, slots=True)
class Load:
    """The mean completion at one concurrency, without its steps."""

    concurrency: int
    batch: float
    """Generations in a step."""
    num_tokens: float
    """Mean tokens of a completion."""
    other_s: float
    """The part of a completion's time that is not spent in steps after its first token."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted model."""

    acceptance: AcceptanceFit
    times: StepTimeFit
    loads: tuple[Load, ...]

    def goodput(self, concurrency: int, k: int) -> float:
        """Return the predicted tokens per second of a measured concurrency with K."""
        load = next(each for each in self.loads if each.concurrency == concurrency)
        steps = max(0.0, load.num_tokens - 1) / self.acceptance.length(k)
        return concurrency * load.num_tokens / (load.other_s + steps * self.times.seconds(load.batch, k))


def fit(sweep: Blocks) -> Fit:
    """Fit a sweep over K at several concurrencies."""
    loads = tuple(_load(sweep, concurrency) for concurrency in sweep.concurrencies)
    return Fit(fit_acceptance(sweep), fit_times(sweep, loads), loads)


def fit_acceptance(sweep: Blocks) -> AcceptanceFit:
    """Fit the acceptance to the tokens per step of each K; every draft has the same weight."""
    max_num_speculative_tokens = sweep.max_num_speculative_tokens
    drafted, accepted = np.zeros(max_num_speculative_tokens + 1), np.zeros(max_num_speculative_tokens + 1)
    for each in sweep.all:
        if each.variant.k:
            drafted[each.variant.k] += each.num_drafted / each.variant.k
            accepted[each.variant.k] += each.num_accepted
    ks = [k for k in range(1, max_num_speculative_tokens + 1) if drafted[k]]
    if not ks:
        return AcceptanceFit((0.0,) * max_num_speculative_tokens)
    # S falls, so it is a sum of downward steps: if the last accepted token has position j, min(j, K) of K are accepted.
    design = np.array([[min(j, k) for j in range(1, max_num_speculative_tokens + 1)] for k in ks], dtype=float)
    weights = np.sqrt(drafted[ks])
    shares, _residual = nnls(design * weights[:, None], accepted[ks] / drafted[ks] * weights)
    survival = np.minimum(1.0, np.cumsum(shares[::-1])[::-1])
    return AcceptanceFit(tuple(float(each) for each in survival))


def fit_times(sweep: Blocks, loads: Sequence[Load]) -> StepTimeFit:
    """Return the step times that come nearest to those of each cell, relative to them."""
    batches = {load.concurrency: load.batch for load in loads}
    rows, targets = [], []
    for concurrency, variant in sweep.cells:
        seconds = step_s(sweep.of(concurrency, variant.name))
        if variant.k is not None and seconds > 0:
            rows.append(_terms(batches[concurrency], variant.k) / seconds)
            targets.append(1.0)
    if not rows:
        return StepTimeFit((0.0,) * _NUM_TERMS)
    found, _residual = nnls(np.array(rows), np.array(targets))
    return StepTimeFit(tuple(float(each) for each in found))


def misfit(sweep: Blocks, fit: Fit) -> float:
    """Return the median relative error of the predicted goodput."""
    found = [
        abs(fit.goodput(concurrency, variant.k) / sweep.mean_goodput(concurrency, variant.name) - 1)
        for concurrency, variant in sweep.cells
        if variant.k is not None
    ]
    return float(np.median(found))


def step_s(blocks: Sequence[Block]) -> float:
    """Return the step time as seen by generations, including steps with the prompts of others; 0 without steps."""
    num_steps = sum(each.num_steps for each in blocks)
    return sum(each.decode_s for each in blocks) / num_steps if num_steps else 0.0


def _load(sweep: Blocks, concurrency: int) -> Load:
    """Compute the sums that do not depend on K."""
    found = [each for each in sweep.all if each.concurrency == concurrency and each.variant.k is not None]
    num_answers = max(1, sum(each.num_answers for each in found))
    num_tokens = sum(each.num_tokens for each in found) / num_answers
    # Each caller is always at work on one completion: that is Little's law.
    totals = [concurrency * num_tokens / each.goodput for each in found if each.goodput]
    decodes = [each.decode_s / each.num_answers for each in found if each.goodput and each.num_answers]
    other_s = max(0.0, float(np.mean(totals)) - float(np.mean(decodes))) if totals and decodes else 0.0
    return Load(concurrency, float(np.mean([each.mean_batch for each in found])), num_tokens, other_s)


def _terms(batch: float, k: int) -> Array:
    return np.array([1.0, batch, float(k > 0), k, k * batch])
