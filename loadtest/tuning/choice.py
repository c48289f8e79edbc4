"""Chooses the K of each batch size, compares the schedules of a check, and says which to run. Pure.

The compared variants are measured side by side in each round. So a round gives one number, a difference or the
logarithm of a ratio, in which the machine's drift and the round's traffic cancel. All estimates and the test are those
of the server's trial at start, with one look at the end, so that both choose the same K.

Goodput alone decides. Acceptance does not: it stays high where drafting costs more than it gains.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from completion_server.speculation.comparison import ALPHA, Gain, compare, margin, rows_of, trimmed_mean
from loadtest.tuning.blocks import Array, Blocks, Rows, Variant

Estimate = Gain
"""A value with its confidence interval."""
OFF = Variant.fixed(0)
CONFIDENCE = 0.95
MIN_ROUNDS = 3
"""With fewer rounds the noise can't be estimated."""

_SAME = Estimate(1.0, 1.0, 1.0)
_MAX_SHED_SHARE = 0.01
_MAX_HIDDEN_GAIN = 0.25
_MAX_CHANGE = 0.25


def mean_of_rounds(values: Array, confidence: float = CONFIDENCE) -> Estimate:
    """Return the mean over rounds of values, one for each. Raises ValueError if there are fewer than MIN_ROUNDS."""
    if len(values) < MIN_ROUNDS:
        raise ValueError(f"at least {MIN_ROUNDS} rounds are needed, got {len(values)}")
    mean, half = trimmed_mean(values.tolist()), margin(values.tolist(), (1 - confidence) / 2)
    return Estimate(mean, mean - half, mean + half)


def ratio_of_rounds(first: Array, second: Array, confidence: float = CONFIDENCE) -> Estimate:
    """Return the geometric mean over rounds of first / second; both positive and of shape (rounds,)."""
    found = mean_of_rounds(np.log(first / second), confidence)
    return Estimate(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def goodput_ratio(
    blocks: Blocks, first: Variant, second: Variant, concurrencies: Sequence[int] | None = None
) -> Estimate:
    """Return the goodput ratio of two variants, with equal weights for the given concurrencies or all of them."""
    if first == second:
        return _SAME
    sides = []
    for variant in (first, second):
        logs = [np.log(blocks.goodput(each, variant.name)) for each in concurrencies or blocks.concurrencies]
        sides.append(np.exp(np.mean(logs, axis=0)))
    return ratio_of_rounds(sides[0], sides[1])


@dataclass(frozen=True, slots=True)
class Choice:
    """The result for one concurrency. Its intervals have the level `confidence_of` the sweep."""

    concurrency: int
    k: int
    """The chosen K."""
    best_k: int
    """The best K above 0; 0 if none was measured."""
    gain: Estimate
    """Ratio of the goodput with `best_k` to that with 0."""
    saved_ms: Estimate
    """Reduction of a completion's median time with `best_k`; negative if it takes longer."""
    total_ms: float
    """A completion's median time with K = 0."""

    @classmethod
    def of(cls, sweep: Blocks, concurrency: int) -> "Choice":
        """Choose K for a concurrency. The sweep needs K = 0 and three rounds or more."""
        off, off_ms = sweep.goodput(concurrency, OFF.name), sweep.total_ms(concurrency, OFF.name)
        gains = {k: np.log(sweep.goodput(concurrency, Variant.fixed(k).name) / off).tolist() for k in sweep.ks if k}
        found = compare(gains)
        best_k = found.k or found.best_k
        saved_ms = off_ms - sweep.total_ms(concurrency, Variant.fixed(best_k).name)
        return cls(
            concurrency=concurrency,
            k=found.k or 0,
            best_k=best_k,
            gain=found.gains.get(best_k, _SAME),
            saved_ms=mean_of_rounds(saved_ms, confidence_of(sweep)),
            total_ms=float(np.mean(off_ms)),
        )


def confidence_of(sweep: Blocks) -> float:
    """Return the level of the intervals of a sweep's choices: the test's error rate, divided by the number of Ks."""
    return 1 - 2 * ALPHA / max(1, sum(k > 0 for k in sweep.ks))


def choose(sweep: Blocks) -> list[Choice]:
    """Return the choice for each concurrency, in rising order."""
    return [Choice.of(sweep, concurrency) for concurrency in sweep.concurrencies]


def table_of(choices: Sequence[Choice]) -> Rows:
    """Return the speculation schedule of the choices; its last row holds beyond the largest concurrency too."""
    return rows_of({each.concurrency: each.k for each in choices}, choices[-1].concurrency)


def best_fixed(sweep: Blocks) -> Variant:
    """Return the best single K for all concurrencies, with equal weights."""

    def mean_log(k: int) -> float:
        rates = [sweep.goodput(each, Variant.fixed(k).name) for each in sweep.concurrencies]
        return float(np.mean(np.log(rates)))

    return Variant.fixed(max(sweep.ks, key=lambda k: (mean_log(k), -k)))


def crossover(table: Rows) -> int | None:
    """Return the batch size from which a table has K = 0; None if it drafts at the largest ones too."""
    return table[-1][0] if table[-1][2] == 0 else None


def as_variant(table: Rows) -> Variant:
    """Return a table as a variant; a table with a single K is that fixed K."""
    return Variant.fixed(table[0][2]) if len(table) == 1 else Variant("table", table)


def candidates(table: Rows, fixed: Variant) -> list[Variant]:
    """Return the variants to compare: K = 0, the best fixed K and the table, without duplicates."""
    return list(dict.fromkeys((OFF, fixed, as_variant(table))))


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
    """Compare the schedules. `blocks` has the variants of `candidates`, in three rounds or more."""
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
    if tuned == found.best_fixed == OFF:
        lines.append("The table, the best fixed K and off are the same, K = 0: there was nothing to check.")
    else:
        lines.append(
            f"On traffic that it had not seen the table gave {found.table_over_fixed} the tokens/s of the best "
            f"fixed K, {found.best_fixed.k}, and {found.table_over_off} those of off."
        )
        if found.recommended == tuned:
            why = "nothing beats it beyond noise" if tuned == OFF else "it wins beyond noise"
            lines.append(f"The table is recommended: {why}.")
        else:
            name = "Off, K = 0," if found.recommended == OFF else f"One K for all, {found.recommended.name},"
            lines.append(f"The table does not win beyond noise. {name} is recommended, as the simpler one.")
    end = "Off is K = 0 on the running server; an engine that is started without drafts also saves their memory."
    return [*lines, end]


def troubles(blocks: Blocks, choices: Sequence[Choice] = ()) -> list[str]:
    """Return warnings about the figures: answers of a completion cache, shed requests and noise."""
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
    hidden = max((each.gain.value / each.gain.low - 1 for each in choices), default=0.0)
    if hidden > _MAX_HIDDEN_GAIN:
        found.append(
            f"Rounds differ so much that a gain of up to {hidden:.0%} can't be told from noise: a better "
            "schedule may have been missed. Measure on a quiet machine, in more rounds or in longer blocks."
        )
    return found


def changes(sweep: Blocks, checks: Blocks, schedule: Variant) -> list[str]:
    """Return a warning for each concurrency at which a schedule's goodput in the check is far from the sweep's."""
    found = []
    for concurrency in checks.concurrencies:
        before = float(np.mean(sweep.goodput(concurrency, Variant.fixed(schedule.k_at(concurrency)).name)))
        measured = checks.goodput(concurrency, schedule.name)
        ratio = ratio_of_rounds(np.full_like(measured, before), measured)
        if ratio.low > 1 + _MAX_CHANGE or ratio.high < 1 / (1 + _MAX_CHANGE):
            found.append(
                f"At concurrency {concurrency} the sweep gave {before:.0f} tokens/s and the check of {schedule.name} "
                f"{np.mean(measured):.0f}, over {_MAX_CHANGE:.0%} apart beyond noise: the machine changed between them."
            )
    return found
