"""Measures whether the trial at start chooses well: many starts of one engine, then the truth about their choices.

Each start loads the engine anew, runs the trial and ends the engine. Then one engine types into other documents with
every K in turn, and the tokens/s of each schedule are those of its K at each batch size, with equal weights (geometric
mean). A K = 0 counts as drafts that are switched off.
"""

import asyncio
import json
import math
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import fmean, median_high
from typing import Any

import click
from rich.console import Console

from completion_server.app.engine_factory import make_engine_factory
from completion_server.app.models import load_prompts
from completion_server.app.samples import make_samples
from completion_server.config import load_config
from completion_server.core.clock import Clock, MonotonicClock
from completion_server.engine.interface import Engine, EngineDeadError, SpeculationControl
from completion_server.engine.speculation.comparison import Schedule, trimmed_mean
from completion_server.engine.speculation.texts import TypedRound, log_gains, tokens_per_s
from completion_server.engine.speculation.trial import (
    NUM_DOCUMENTS,
    MakeRequest,
    StartChoice,
    Typist,
    run_trial,
    trial_sizes,
)
from completion_server.engine.warmup import warm_up
from loadtest.bench.runner.benchmark import COUNT, ServerOptions, benchmark, option

MAX_LOSS = 0.03
_SETTINGS = {"ngram": (), "draft": ("engine.draft_model=draft_model/embedded",)}
_STEP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Start:
    """What one start chose."""

    choice: StartChoice
    trial_s: float


@dataclass(frozen=True, slots=True)
class Truth:
    """The tokens/s by batch size and K, measured for long."""

    rates: Mapping[int, Mapping[int, float]]
    log_gains: Mapping[int, Mapping[int, float]]
    """Logarithms of the gains over no drafts without the noise of the texts and of disturbed rounds."""

    def over_best(self, rows: Schedule, *, is_adjusted: bool = False) -> float:
        """Return the tokens/s of a schedule over those of the best one, as the geometric mean of the batch sizes."""
        losses = []
        for size, rates in self.rates.items():
            values = self.log_gains[size] if is_adjusted else {k: math.log(rate) for k, rate in rates.items()}
            k_at = next((k for _, last, k in rows if size <= last), rows[-1][2])
            losses.append(values[k_at] - max(values.values()))
        return math.exp(fmean(losses))


@asynccontextmanager
async def _started(engine: Engine) -> AsyncIterator[SpeculationControl]:
    try:
        await engine.start()
        await warm_up(engine, _STEP_TIMEOUT_S)
        assert engine.speculation is not None
        yield engine.speculation
    finally:
        await engine.stop()


async def start_once(engine: Engine, make: MakeRequest, clock: Clock, chance: random.Random | None = None) -> Start:
    """Start an engine, run the trial, and stop the engine."""
    async with _started(engine) as speculation:
        trial_at = clock.now()
        choice = await run_trial(engine, speculation, make, clock, _STEP_TIMEOUT_S, chance)
        return Start(choice, clock.now() - trial_at)


async def measure_truth(engine: Engine, make: MakeRequest, clock: Clock, seconds: float) -> Truth:
    """Type with every K in turn, in random order, for so many seconds."""
    async with _started(engine) as speculation:
        ks = range(engine.info.num_speculative_tokens + 1)
        typist, chance = Typist(engine, speculation, make, clock, _STEP_TIMEOUT_S), random.Random(1)
        await typist.prime(ks)
        rounds: dict[int, list[TypedRound]] = {size: [] for size in trial_sizes(engine.info.max_num_seqs)}
        spent_s = dict.fromkeys(rounds, 0.0)
        while sum(spent_s.values()) < seconds or not all(rounds.values()):
            size, begun_at = min(spent_s, key=lambda size: spent_s[size]), clock.now()
            rounds[size].append(await typist.round(size, chance.sample(ks, len(ks))))
            spent_s[size] += clock.now() - begun_at
    rates = {
        size: {k: tokens_per_s(size, [each for made in own for each in made[k]]) for k in ks}
        for size, own in rounds.items()
    }
    gains = log_gains(rounds, ks[1:])
    return Truth(rates, {size: {0: 0.0} | {k: trimmed_mean(each) for k, each in gains[size].items()} for size in rates})


def figures(starts: Sequence[Start], truth: Truth) -> dict[str, Any]:
    """Return the figures of the last line."""
    over = [truth.over_best(each.choice.rows) for each in starts]
    return {
        "starts": len(starts),
        "starts_within_3_percent": sum(each >= 1 - MAX_LOSS for each in over),
        "worst_over_best": min(over),
        "trial_s_median": median_high(each.trial_s for each in starts),
        "schedules": {json.dumps(rows): n for rows, n in Counter(each.choice.rows for each in starts).most_common()},
        "tokens_per_s": truth.rates,
        "gains": {size: {k: math.exp(g) for k, g in own.items()} for size, own in truth.log_gains.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options(ServerOptions):
    setting: str = option("ngram", "", click.Choice(list(_SETTINGS)))
    starts: int = option(20, "Starts of the engine.", COUNT, quick=1)
    seconds: float = option(240.0, "To measure the truth.", click.FloatRange(0), quick=10.0)


@benchmark(_Options, EngineDeadError)
def main(options: _Options, console: Console) -> Mapping[str, Any]:
    """Start an engine many times, and say how many starts chose K well. The last line is a JSON object.

    \b
    Example:
        python -m loadtest.bench.trial --setting draft --starts 5 --seconds 60
    """
    return {options.setting: figures(*asyncio.run(_run(options, console)))}


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
