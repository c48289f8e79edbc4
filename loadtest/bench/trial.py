"""Measures whether the trial at start chooses well: many starts of one engine, then the truth about their choices.

Each start loads the engine anew, runs the trial and ends the engine. Then one engine types into other documents with
every K in turn, and the tokens/s of each schedule are those of its K at each batch size, with equal weights (geometric
mean). A K = 0 counts as drafts that are switched off.

Scripted engines, whose best K at each batch size is known, run in virtual time beside a noisy neighbour.
"""

import asyncio
import json
import math
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_high
from typing import Any

import click
from rich.console import Console

from completion_server.composition.engine_factory import make_engine_factory
from completion_server.composition.models import load_prompts
from completion_server.composition.samples import make_samples
from completion_server.config import load_config
from completion_server.core.clock import Clock, MonotonicClock
from completion_server.engine.interface import Engine, EngineDeadError, GenerationRequest
from completion_server.engine.scripted.engine import ScriptedEngine, ServiceTimes, Token
from completion_server.engine.warmup import warm_up
from completion_server.speculation.comparison import Schedule, trimmed_mean
from completion_server.speculation.texts import TypedRound, log_gains, tokens_per_s
from completion_server.speculation.trial import (
    NUM_DOCUMENTS,
    MakeRequest,
    StartChoice,
    Typist,
    run_trial,
    trial_sizes,
)
from loadtest.bench.runner.benchmark import COUNT, ServerOptions, benchmark, option
from loadtest.simulation import virtual_time
from loadtest.simulation.virtual_time import LoopClock

MAX_LOSS = 0.03
MAX_K, SEQS = 4, 32
"""Of the scripted engines."""

_STEP_S = 8e-3
_NOISE, _NOISE_S = 0.05, 0.3
_DISTURBED_SHARE = 0.05
_SETTINGS = {"ngram": (), "draft": ("engine.draft_model=draft_model/embedded",)}
_STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """An engine whose draft tokens cost a known share of a step, and their verification another one."""

    draft: float
    verify: float
    acceptance: float

    def make(self, seed: int | None = None) -> ScriptedEngine:
        """Return the engine, disturbed if there is a seed."""
        times = ServiceTimes(
            prefill_base_s=2e-3,
            decode_base_s=_STEP_S,
            draft_s=self.draft * _STEP_S,
            verify_per_token_s=self.verify * _STEP_S,
        )
        return ScriptedEngine(
            _line,
            times,
            max_num_seqs=SEQS,
            num_speculative_tokens=MAX_K,
            acceptance_rate=self.acceptance,
            lengthen=float if seed is None else _disturbed(seed),
        )


KNOWN = {
    "loses 10%": KnownEngine(0.415, 0.0, 0.3),
    "gains 4%": KnownEngine(0.228, 0.0, 0.3),
    "gains 8%": KnownEngine(0.184, 0.0, 0.3),
    "gains 40% with K = 2, loses at 16": KnownEngine(0.20, 0.045, 0.7),
}
"""By the effect of the best K."""


def make_request(document: int, num_keys: int, num_tokens: int, cache_salt: str) -> GenerationRequest:
    """Return a request; the same place in the same document has the same text and the same accepted drafts."""
    prompt = [1 + document] * 64 + [1 + num_keys]
    return GenerationRequest(f"{document}/{num_keys}", prompt, num_tokens, cache_salt=cache_salt)


def _line(request: GenerationRequest) -> list[Token]:
    """Return a completion of one line, whose length depends on the prompt."""
    return [Token("x", 5)] * random.Random(str(request.prompt_token_ids)).randint(4, 20)


def _disturbed(seed: int) -> Callable[[float], float]:
    """Return how long a step takes beside others: lognormal noise, and sometimes half of the machine."""
    chance, until_s, factor = random.Random(seed), 0.0, 1.0

    def lengthen(step_s: float) -> float:
        nonlocal until_s, factor
        if (now := LoopClock().now()) >= until_s:
            until_s = now + _NOISE_S
            factor = math.exp(chance.gauss(0, _NOISE)) * (2 if chance.random() < _DISTURBED_SHARE else 1)
        return step_s * factor

    return lengthen


@dataclass(frozen=True, slots=True)
class Start:
    """What one start chose."""

    choice: StartChoice
    trial_s: float
    whole_s: float


@dataclass(frozen=True, slots=True)
class Truth:
    """The tokens/s by batch size and K, measured for long."""

    rates: Mapping[int, Mapping[int, float]]
    log_gains: Mapping[int, Mapping[int, float]]
    """Logarithms of the gains over no drafts without the noise of the texts and of disturbed rounds."""

    def over_best(self, rows: Schedule, *, is_adjusted: bool = False) -> float:
        """Return the tokens/s of a schedule over those of the best one, as the geometric mean of the batch sizes."""
        return math.exp(fmean(self._log_losses(rows, is_adjusted=is_adjusted)))

    def worst_over_best(self, rows: Schedule) -> float:
        """Return the same for the batch size at which the schedule is worst, adjusted."""
        return math.exp(min(self._log_losses(rows, is_adjusted=True)))

    def _log_losses(self, rows: Schedule, *, is_adjusted: bool) -> Iterator[float]:
        for size, rates in self.rates.items():
            values = self.log_gains[size] if is_adjusted else {k: math.log(rate) for k, rate in rates.items()}
            k_at = next((k for _, last, k in rows if size <= last), rows[-1][2])
            yield values[k_at] - max(values.values())


async def start_once(engine: Engine, make: MakeRequest, clock: Clock, chance: random.Random | None = None) -> Start:
    """Start an engine, run the trial, and stop the engine."""
    begun_at = clock.now()
    try:
        await engine.start()
        await warm_up(engine, _STEP_TIMEOUT_S)
        assert engine.speculation is not None
        trial_at = clock.now()
        choice = await run_trial(engine, engine.speculation, make, clock, _STEP_TIMEOUT_S, chance)
        trial_s = clock.now() - trial_at
    finally:
        await engine.stop()
    return Start(choice, trial_s, clock.now() - begun_at)


async def measure_truth(engine: Engine, make: MakeRequest, clock: Clock, seconds: float) -> Truth:
    """Type with every K in turn, in random order, for so many seconds."""
    try:
        await engine.start()
        await warm_up(engine, _STEP_TIMEOUT_S)
        assert engine.speculation is not None
        ks = range(engine.info.num_speculative_tokens + 1)
        typist, chance = Typist(engine, engine.speculation, make, clock, _STEP_TIMEOUT_S), random.Random(1)
        await typist.prime(ks)
        rounds: dict[int, list[TypedRound]] = {size: [] for size in trial_sizes(engine.info.max_num_seqs)}
        spent_s = dict.fromkeys(rounds, 0.0)
        while sum(spent_s.values()) < seconds or not all(rounds.values()):
            size, begun_at = min(spent_s, key=lambda size: spent_s[size]), clock.now()
            rounds[size].append(await typist.round(size, chance.sample(ks, len(ks))))
            spent_s[size] += clock.now() - begun_at
    finally:
        await engine.stop()
    rates = {
        size: {k: tokens_per_s(size, [each for made in own for each in made[k]]) for k in ks}
        for size, own in rounds.items()
    }
    gains = log_gains(rounds, ks[1:])
    return Truth(rates, {size: {0: 0.0} | {k: trimmed_mean(each) for k, each in gains[size].items()} for size in rates})


def figures(starts: Sequence[Start], truth: Truth) -> dict[str, Any]:
    """Return the figures of the last line."""
    over = [truth.over_best(each.choice.rows) for each in starts]
    adjusted = [truth.over_best(each.choice.rows, is_adjusted=True) for each in starts]
    return {
        "starts": len(starts),
        "starts_within_3_percent": sum(each >= 1 - MAX_LOSS for each in over),
        "starts_within_3_percent_adjusted": sum(each >= 1 - MAX_LOSS for each in adjusted),
        "worst_over_best": min(over),
        "worst_batch_size_over_best": min(truth.worst_over_best(each.choice.rows) for each in starts),
        "trial_s_median": median_high(each.trial_s for each in starts),
        "trial_s_max": max(each.trial_s for each in starts),
        "start_s_median": median_high(each.whole_s for each in starts),
        "schedules": {json.dumps(rows): n for rows, n in Counter(each.choice.rows for each in starts).most_common()},
        "tokens_per_s": truth.rates,
        "gains": {size: {k: math.exp(g) for k, g in own.items()} for size, own in truth.log_gains.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    setting: str = option("ngram", "", click.Choice([*_SETTINGS, "scripted"]))
    starts: int = option(20, "Starts of the engine.", COUNT, quick=1)
    seconds: float = option(240.0, "To measure the truth.", click.FloatRange(0), quick=10.0)


@benchmark(_Options, EngineDeadError)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Start an engine many times, and say how many starts chose K well. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.trial --setting draft --starts 5 --seconds 60
    """
    if options.setting == "scripted":
        return {name: figures(*_run_known(engine, options.starts, options.seconds)) for name, engine in KNOWN.items()}
    return {options.setting: figures(*asyncio.run(_run(options, console)))}


def _run_known(known: KnownEngine, num_starts: int, seconds: float) -> tuple[list[Start], Truth]:
    """Run starts of a scripted engine in virtual time."""

    async def start(seed: int) -> Start:
        return await start_once(known.make(seed), make_request, LoopClock(), random.Random(seed))

    async def measure() -> Truth:
        return await measure_truth(known.make(), make_request, LoopClock(), seconds)

    return [virtual_time.run(start(seed)) for seed in range(num_starts)], virtual_time.run(measure())


async def _run(options: _Options, console: Console) -> tuple[list[Start], Truth]:
    """Run starts of the configured engine."""
    effective = load_config(options.config, (*_SETTINGS[options.setting], *options.overrides), os.environ)
    make_engine, prompts, clock = make_engine_factory(effective), load_prompts(effective), MonotonicClock()
    starts = []
    for number in range(options.starts):
        with console.status(f"start {number + 1} of {options.starts}"):
            starts.append(await start_once(make_engine(), make_samples(prompts), clock))
        chosen = starts[-1].choice
        console.print(f"start {number + 1} of {options.starts}: {list(map(list, chosen.rows))}; {chosen.reason}")
    with console.status("measuring every K"):
        others = make_samples(prompts, first=NUM_DOCUMENTS)
        return starts, await measure_truth(make_engine(), others, clock, options.seconds)


if __name__ == "__main__":
    main()
