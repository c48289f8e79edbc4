"""Chooses the K of each batch size, compares the schedules of a check, and describes the result in sentences. Pure.

The compared variants are measured side by side in each round. So a round gives one number, a difference or the
logarithm of a ratio, in which the machine's drift and the round's traffic cancel. All estimates are those of the
server's trial at start: the trimmed mean over rounds, and an interval with Student's t.

Goodput alone decides. Acceptance does not: it stays high where drafting costs more than it gains. The test is that of
the trial too, with one look at the end, so that both choose the same K.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from completion_server.speculation.comparison import ALPHA, compare, margin, rows_of, trimmed_mean
from loadtest.tuning.blocks import Array, Blocks, Rows, Variant
from loadtest.tuning.fit import Fit

OFF = Variant.fixed(0)
CONFIDENCE = 0.95
MIN_ROUNDS = 3
"""With fewer rounds the noise can't be estimated."""
TABLE = "table"

_MAX_SHED_SHARE = 0.01
_MAX_HIDDEN_GAIN = 0.25
_MAX_MISPREDICTION = 0.25


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> "Estimate":
        """Return an estimate without uncertainty."""
        return cls(value, value, value)


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

    @property
    def saved_share(self) -> float:
        """The same reduction relative to the time with K = 0."""
        return self.saved_ms.value / self.total_ms


def confidence_of(sweep: Blocks) -> float:
    """Return the level of the intervals of a sweep's choices: the test's error rate, divided by the number of Ks."""
    num_ks = sum(bool(each.k) for each in sweep.variants)
    return 1 - 2 * ALPHA / max(1, num_ks)


def choose(sweep: Blocks) -> list[Choice]:
    """Return the choice for each concurrency, in rising order. The sweep needs K = 0 and three rounds or more."""
    return [_choose(sweep, concurrency) for concurrency in sweep.concurrencies]


def table_of(choices: Sequence[Choice]) -> Rows:
    """Return the speculation schedule of the choices; its last row holds beyond the largest concurrency too."""
    return rows_of({each.concurrency: each.k for each in choices}, choices[-1].concurrency)


def best_fixed(sweep: Blocks) -> Variant:
    """Return the best single K for all concurrencies, with equal weights."""
    return Variant.fixed(max(sweep.ks, key=lambda k: (_mean_log_gain(sweep, Variant.fixed(k)), -k)))


def crossover(table: Rows) -> int | None:
    """Return the batch size from which a table has K = 0; None if it drafts at the largest ones too."""
    return table[-1][0] if table[-1][2] == 0 else None


def _choose(sweep: Blocks, concurrency: int) -> Choice:
    off, off_ms = sweep.goodput(concurrency, OFF.name), sweep.total_ms(concurrency, OFF.name)
    log_gains = {
        each.k: np.log(sweep.goodput(concurrency, each.name) / off).tolist() for each in sweep.variants if each.k
    }
    found = compare(log_gains)
    best_k = found.k or found.best_k
    gain = found.gains.get(best_k)
    return Choice(
        concurrency=concurrency,
        k=found.k or 0,
        best_k=best_k,
        gain=Estimate(gain.value, gain.low, gain.high) if gain else Estimate.exact(1.0),
        saved_ms=mean_of_rounds(off_ms - sweep.total_ms(concurrency, Variant.fixed(best_k).name), confidence_of(sweep)),
        total_ms=float(np.mean(off_ms)),
    )


def _mean_log_gain(sweep: Blocks, variant: Variant) -> float:
    ratios = [sweep.goodput(each, variant.name) / sweep.goodput(each, OFF.name) for each in sweep.concurrencies]
    return float(np.mean(np.log(ratios)))


@dataclass(frozen=True, slots=True)
class Verification:
    """The table compared with the best fixed K and with K = 0, on traffic that the choice did not use."""

    best_fixed: Variant
    table_over_fixed: Estimate
    table_over_off: Estimate
    fixed_over_off: Estimate
    recommended: Variant
    """The schedule to run: K = 0 unless another beats it beyond noise; the table only if it also beats the fixed K."""


def verify(blocks: Blocks, table: Rows, fixed: Variant, confidence: float = CONFIDENCE) -> Verification:
    """Compare the schedules. `blocks` has the variants of `candidates`, in three rounds or more."""
    tuned = as_variant(table)
    over_fixed = goodput_ratio(blocks, tuned, fixed, confidence)
    over_off = goodput_ratio(blocks, tuned, OFF, confidence)
    fixed_over_off = goodput_ratio(blocks, fixed, OFF, confidence)
    recommended = OFF
    if fixed_over_off.low > 1:
        recommended = fixed
    if over_off.low > 1 and (recommended == OFF or over_fixed.low > 1):
        recommended = tuned
    return Verification(fixed, over_fixed, over_off, fixed_over_off, recommended)


def as_variant(table: Rows) -> Variant:
    """Return a table as a variant; a table with a single K is that fixed K."""
    return Variant.fixed(table[0][2]) if len(table) == 1 else Variant(TABLE, table)


def candidates(table: Rows, fixed: Variant) -> list[Variant]:
    """Return the variants to compare: K = 0, the best fixed K and the table, without duplicates."""
    return list(dict.fromkeys((OFF, fixed, as_variant(table))))


def words(choices: Sequence[Choice], table: Rows, found: Verification) -> list[str]:
    """Return the verdict: sentences on each concurrency, on the crossover and on the verification."""
    lines = [_of_choice(choice) for choice in choices]
    lines.append(_of_crossover(table))
    lines += _of_verification(table, found)
    lines.append(
        "Off is K = 0 on the running server; an engine that is started without drafts also saves their memory."
    )
    return lines


def troubles(blocks: Blocks, choices: Sequence[Choice] = ()) -> list[str]:
    """Return warnings about the figures: answers of a completion cache, shed requests and noise."""
    return [*_cached(blocks), *_shed(blocks), *_noise(choices)]


def mispredictions(checks: Blocks, schedule: Variant, fit: Fit) -> list[str]:
    """Return a warning for each concurrency at which a schedule's checked goodput is far from the predicted one."""
    found = []
    for concurrency in checks.concurrencies:
        predicted = fit.goodput(concurrency, schedule.k_at(concurrency))
        measured = checks.goodput(concurrency, schedule.name)
        ratio = ratio_of_rounds(np.full_like(measured, predicted), measured)
        if ratio.low > 1 + _MAX_MISPREDICTION or ratio.high < 1 / (1 + _MAX_MISPREDICTION):
            found.append(
                f"At concurrency {concurrency} {predicted:.0f} tokens/s were predicted with {schedule.name} and "
                f"{np.mean(measured):.0f} were measured, over {_MAX_MISPREDICTION:.0%} apart beyond noise: the "
                "machine changed between the measurements, or the server does not behave as the fitted model."
            )
    return found


def _cached(blocks: Blocks) -> list[str]:
    if not blocks.num_cached:
        return []
    num_answers = sum(each.num_answers for each in blocks.all)
    return [
        f"The result is invalid: {blocks.num_cached} of {num_answers} answers came from the server's completion cache, "
        "so the engine did not compute them. The server is older than the field without_completion_cache: start it "
        "with cache.enabled = false."
    ]


def _shed(blocks: Blocks) -> list[str]:
    shed = Counter(reason for each in blocks.all for reason in each.shed)
    num_requests = shed.total() + sum(each.num_answers for each in blocks.all)
    if shed.total() <= _MAX_SHED_SHARE * num_requests:
        return []
    reasons = ", ".join(f"{reason} {count}" for reason, count in shed.most_common())
    return [
        f"The server turned {shed.total() / num_requests:.0%} of the requests away ({reasons}), so the engine ran "
        "fewer requests at once than the tuning asked for. For tuning start it with shed.when = never, "
        "scheduling.step_tolerance = 0, and admission.user_requests_per_s, admission.user_tokens_per_s and "
        "admission.users_per_peer = 0."
    ]


def _noise(choices: Sequence[Choice]) -> list[str]:
    hidden = [each.gain.value / each.gain.low - 1 for each in choices]
    if not hidden or max(hidden) <= _MAX_HIDDEN_GAIN:
        return []
    return [
        f"Rounds differ so much that a gain of up to {max(hidden):.0%} can't be told from noise: a better "
        "schedule may have been missed. Measure on a quiet machine, in more rounds or in longer blocks."
    ]


def goodput_ratio(
    blocks: Blocks, first: Variant, second: Variant, confidence: float = CONFIDENCE,
    concurrencies: Sequence[int] | None = None,
) -> Estimate:  # fmt: skip
    """Return the goodput ratio of two variants, with equal weights for the given concurrencies or all of them."""
    if first == second:
        return Estimate.exact(1.0)
    sides = []
    for variant in (first, second):
        logs = [np.log(blocks.goodput(each, variant.name)) for each in concurrencies or blocks.concurrencies]
        sides.append(np.exp(np.mean(logs, axis=0)))
    return ratio_of_rounds(sides[0], sides[1], confidence)


def _of_choice(choice: Choice) -> str:
    saved, gain = choice.saved_ms, choice.gain
    head = (
        f"At concurrency {choice.concurrency} a typical completion takes {choice.total_ms:.0f} ms without speculation. "
    )
    if not choice.best_k:
        return head + "No other K was measured."
    tokens = f"{gain.value:.2f} times the tokens/s, {gain.low:.2f} to {gain.high:.2f}"
    if choice.k:
        span = f"{saved.low:.1f} to {saved.high:.1f}"
        return head + (
            f"K = {choice.k} saves {saved.value:.1f} ms of it, {choice.saved_share:.0%} ({span} ms; {tokens})."
        )
    if gain.high < 1:
        change = f"{abs(saved.value):.1f} ms {'less' if saved.value > 0 else 'more'}"
        return head + f"K should be 0: even with the best other, {choice.best_k}, it is {change} ({tokens})."
    return head + f"K should be 0: the best other, {choice.best_k}, is not better beyond noise ({tokens})."


def _of_crossover(table: Rows) -> str:
    at = crossover(table)
    if at is None:
        return f"Speculation pays up to the largest batch measured, {table[-1][1]}."
    if at == 1:
        return "Speculation pays at no batch size: K should be 0 everywhere."
    return f"Speculation stops paying at a batch size of about {at}: K should be 0 from there on."


def _of_verification(table: Rows, found: Verification) -> list[str]:
    tuned, fixed = as_variant(table), found.best_fixed
    if tuned == OFF and fixed == OFF:
        return ["The table, the best fixed K and off are the same, K = 0: there was nothing to check."]
    said = [
        f"On traffic that it had not seen the table gave {_times(found.table_over_fixed)} the tokens/s of the best "
        f"fixed K, {fixed.k}, and {_times(found.table_over_off)} those of off."
    ]
    if found.recommended == tuned:
        why = "nothing beats it beyond noise" if tuned == OFF else "it wins beyond noise"
        said.append(f"The table is recommended: {why}.")
    else:
        name = "Off, K = 0," if found.recommended == OFF else f"One K for all, {found.recommended.name},"
        said.append(f"The table does not win beyond noise. {name} is recommended, as the simpler one.")
    return said


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"
