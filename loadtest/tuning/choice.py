"""Chooses the K of each batch size, compares the schedules of a check, and says which to run. Pure.

The compared variants are measured side by side in each round. So a round gives one number, the logarithm of a ratio,
in which the machine's drift and the round's traffic cancel. All estimates and the test are those of the server's trial
at start, with one look at the end, so that both choose the same K.

Goodput alone decides. Acceptance does not: it stays high where drafting costs more than it gains.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from completion_server.engine.speculation.comparison import ALPHA, Gain, compare, margin, rows_of, trimmed_mean
from loadtest.tuning.blocks import Array, Blocks, Rows, Variant

Estimate = Gain
"""A value with its confidence interval."""
OFF = Variant.fixed(0)
CONFIDENCE = 0.95
MIN_ROUNDS = 3
"""With fewer rounds the noise can't be estimated."""

_SAME = Estimate(1.0, 1.0, 1.0)
_MAX_SHED_SHARE = 0.01


def ratio_of_rounds(first: Array, second: Array, confidence: float = CONFIDENCE) -> Estimate:
    """Return the geometric mean over rounds of first / second; both positive and of shape (rounds,).

    Raises ValueError if there are fewer than MIN_ROUNDS.
    """
    if len(first) < MIN_ROUNDS:
        raise ValueError(f"at least {MIN_ROUNDS} rounds are needed, got {len(first)}")
    logs = np.log(first / second).tolist()
    mean, half = trimmed_mean(logs), margin(logs, (1 - confidence) / 2)
    return Estimate(*map(math.exp, (mean, mean - half, mean + half)))


def goodput_ratio(
    blocks: Blocks, first: Variant, second: Variant, concurrencies: Sequence[int] | None = None
) -> Estimate:
    """Return the goodput ratio of two variants, with equal weights for the given concurrencies or all of them."""
    if first == second:
        return _SAME
    places = concurrencies or blocks.concurrencies
    means = [
        np.exp(np.mean([np.log(blocks.goodput(each, side)) for each in places], axis=0)) for side in (first, second)
    ]
    return ratio_of_rounds(means[0], means[1])


@dataclass(frozen=True, slots=True)
class Choice:
    """The result for one concurrency. The interval has the level `confidence_of` the sweep."""

    concurrency: int
    k: int
    """The chosen K."""
    best_k: int
    """The best K above 0; 0 if none was measured."""
    gain: Estimate
    """Ratio of the goodput with `best_k` to that with 0."""


def confidence_of(sweep: Blocks) -> float:
    """Return the level of the intervals of a sweep's choices: the test's error rate, divided by the number of Ks."""
    return 1 - 2 * ALPHA / max(1, sum(k > 0 for k in sweep.ks))


def choose(sweep: Blocks) -> tuple[Choice, ...]:
    """Return the choice for each concurrency, in rising order. The sweep needs K = 0 and three rounds or more."""
    found = []
    for concurrency in sweep.concurrencies:
        off = sweep.goodput(concurrency, OFF)
        logs = {k: np.log(sweep.goodput(concurrency, Variant.fixed(k)) / off).tolist() for k in sweep.ks if k}
        result = compare(logs)
        best_k = result.k or result.best_k
        found.append(Choice(concurrency, result.k or 0, best_k, result.gains.get(best_k, _SAME)))
    return tuple(found)


def table_of(choices: Sequence[Choice]) -> Rows:
    """Return the speculation schedule of the choices; its last row holds beyond the largest concurrency too."""
    return rows_of({each.concurrency: each.k for each in choices}, choices[-1].concurrency)


def best_fixed(sweep: Blocks) -> Variant:
    """Return the best single K for all concurrencies, with equal weights; of equal ones the smallest."""
    return max(map(Variant.fixed, sweep.ks), key=lambda each: goodput_ratio(sweep, each, OFF).value)


def crossover(table: Rows) -> int | None:
    """Return the batch size from which a table has K = 0; None if it drafts at the largest ones too."""
    return table[-1][0] if table[-1][2] == 0 else None


def as_variant(table: Rows) -> Variant:
    """Return a table as a variant; a table with a single K is that fixed K."""
    return Variant.fixed(table[0][2]) if len(table) == 1 else Variant("table", table)


@dataclass(frozen=True, slots=True)
class Verification:
    """The table compared with the best fixed K and with K = 0, on traffic that the choice did not use."""

    best_fixed: Variant
    table_over_fixed: Estimate
    table_over_off: Estimate
    fixed_over_off: Estimate
    recommended: Variant
    """The schedule to run: K = 0 unless another beats it beyond noise; the table only if it also beats the fixed K."""


def verify(blocks: Blocks, table: Rows, fixed: Variant) -> Verification:
    """Compare the schedules. `blocks` has both, and K = 0, in three rounds or more."""
    tuned = as_variant(table)
    over_fixed, over_off = goodput_ratio(blocks, tuned, fixed), goodput_ratio(blocks, tuned, OFF)
    fixed_over_off = goodput_ratio(blocks, fixed, OFF)
    recommended = fixed if fixed_over_off.low > 1 else OFF
    if over_off.low > 1 and (recommended == OFF or over_fixed.low > 1):
        recommended = tuned
    return Verification(fixed, over_fixed, over_off, fixed_over_off, recommended)


def words(table: Rows, found: Verification) -> list[str]:
    """Return the verdict: sentences on the crossover and on the verification."""
    at, tuned = crossover(table), as_variant(table)
    if at is None:
        lines = [f"Speculation pays up to the largest batch measured, {table[-1][1]}."]
    elif at == 1:
        lines = ["Speculation pays at no batch size: K should be 0 everywhere."]
    else:
        lines = [f"Speculation stops paying at a batch size of about {at}: K should be 0 from there on."]
    if not tuned == found.best_fixed == OFF:
        lines.append(
            f"On traffic that it had not seen the table gave {found.table_over_fixed} the tokens/s of the best "
            f"fixed K, {found.best_fixed.k}, and {found.table_over_off} those of K = 0."
        )
        if found.recommended != tuned:
            lines.append(f"The table does not win beyond noise: {found.recommended.name} for all is recommended.")
    return [*lines, "K = 0 is that of the running server; an engine started without drafts also saves their memory."]


def troubles(blocks: Blocks) -> list[str]:
    """Return warnings about the figures: answers of a completion cache, and shed requests."""
    found, num_answers = [], len(blocks.answers)
    if blocks.num_cached:
        found.append(
            f"The result is invalid: {blocks.num_cached} of {num_answers} answers came from the server's completion "
            "cache, so the engine did not compute them. The server is older than the field without_completion_cache: "
            "start it with cache.enabled = false."
        )
    shed = Counter(reason for each in blocks.all for reason in each.shed)
    share = shed.total() / max(1, shed.total() + num_answers)
    if share > _MAX_SHED_SHARE:
        reasons = ", ".join(f"{reason} {count}" for reason, count in shed.most_common())
        found.append(
            f"The server turned {share:.0%} of the requests away ({reasons}), so the engine ran fewer requests at once "
            "than the tuning asked for. For tuning start it with shed.when = never, scheduling.step_tolerance = 0, and "
            "admission.user_requests_per_s, admission.user_tokens_per_s and admission.users_per_peer = 0."
        )
    return found
