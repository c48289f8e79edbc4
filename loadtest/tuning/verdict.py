"""The verdict of a tuning: compares three schedules, recommends one, and describes the result in sentences. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtest.tuning.blocks import Blocks, Rows, Variant
from loadtest.tuning.choice import CONFIDENCE, OFF, Choice, Estimate, crossover, ratio_of_rounds
from loadtest.tuning.fit import Fit, cells

TABLE = "table"
_MAX_SHED_SHARE = 0.01
_MAX_HIDDEN_GAIN = 0.25
_MAX_MISPREDICTION = 0.25


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
    over_off, fixed_over_off = (
        goodput_ratio(blocks, tuned, OFF, confidence),
        goodput_ratio(blocks, fixed, OFF, confidence),
    )
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
        "Off is K = 0 on the running server. vLLM still runs the draft once in each step then: an engine that is "
        "started without a draft may be faster than any of these."
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
                f"{float(np.mean(measured)):.0f} were measured, over {_MAX_MISPREDICTION:.0%} apart beyond noise: the "
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


def misfit(sweep: Blocks, fit: Fit) -> float:
    """Return the median relative error of the predicted goodput."""
    found = [
        abs(fit.goodput(concurrency, variant.k) / float(np.mean(sweep.goodput(concurrency, variant.name))) - 1)
        for concurrency, variant in cells(sweep)
        if variant.k is not None
    ]
    return float(np.median(found))


def goodput_ratio(
    blocks: Blocks, first: Variant, second: Variant, confidence: float = CONFIDENCE,
    concurrencies: Sequence[int] | None = None,
) -> Estimate:  # fmt: skip
    """Return the goodput ratio of two variants, with equal weights for the given concurrencies or all of them."""
    if first == second:
        return Estimate.exact(1.0)
    sides = [
        np.exp(
            np.mean(
                [np.log(blocks.goodput(each, variant.name)) for each in concurrencies or blocks.concurrencies], axis=0
            )
        )
        for variant in (first, second)
    ]
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
