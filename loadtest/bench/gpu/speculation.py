"""What a draft brings a 13B-sized INT8 target on a GPU, five ways, each against an engine without a draft.

Each way takes turns with that engine on prompts of random tokens; nothing is between them and the benchmark. The
acceptance is made up, as the weights are: vLLM's synthetic rejection accepts drafts at a set rate.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.bench.gpu.engines import (
    RUNNER,
    SCHEDULE,
    WORKER_EXTENSION,
    EngineVariant,
    Trial,
    draft_args,
    engine_args,
    random_prompts,
    started,
    write_models,
)
from loadtest.bench.peers.bare_engine import BareEngine
from loadtest.bench.runner.figures import percentile
from loadtest.tuning.choice import ratio_of_rounds

_PROMPT_TOKENS = 128
"""Few, so that the KV cache of the largest batch fits beside another engine: 0.8 MiB for each token."""
_GPU_SHARE = 0.18
"""25 GB of an H200: 15 of weights, the rest KV cache and graphs."""
_ON_A_GPU = ("full graphs alone", "newer runner")

Rates = dict[str, dict[str, dict[str, list[float]]]]
"""Tokens/s by contestant and batch size, a value for each round: "total" of all requests together, and "alone", the
median of one request after its first token."""

BASELINE = "no draft"


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """What is measured."""

    k: int = 5
    acceptance: float = 0.82
    batches: tuple[int, ...] = (1, 4, 16)
    tokens: int = 128
    rounds: int = 4
    seed: int = 0

    def ways(self, folder: Path, *, is_tiny: bool = False) -> tuple[EngineVariant, ...]:
        """Return the engines, on models in `folder`, that without a draft first; it has vLLM's own choice of runner.

        The newer runner has full graphs only for a K that the schedule names, so one row names 0; the live K replaces
        all rows. A trial on a CPU, which has neither, leaves out this runner, graphs alone and synthetic acceptance.
        """
        most, k = max(self.batches), self.k
        common = engine_args(
            folder / "target", is_tiny=is_tiny, gpu_share=_GPU_SHARE, max_model_len=1024, max_num_seqs=most
        )
        drafts = draft_args(folder / "draft", k, self.acceptance, is_tiny=is_tiny)
        constant = common | {"speculative_config": drafts}
        scheduled = common | {"speculative_config": drafts | {SCHEDULE: [[1, most, k]]}}
        named = common | {"speculative_config": drafts | {SCHEDULE: [[1, most - 1, k], [most, most, 0]]}}
        only_full = {"compilation_config": {"cudagraph_mode": "FULL"}}
        live = {"worker_extension_cls": WORKER_EXTENSION}
        found = [
            EngineVariant(BASELINE, common),
            EngineVariant("schedule", scheduled | live, {RUNNER: "0"}, (k, 0)),
            EngineVariant("fixed", constant, {RUNNER: "0"}),
            EngineVariant("full graphs", constant | live, {RUNNER: "0"}, (k, 0)),
            EngineVariant("full graphs alone", constant | live | only_full, {RUNNER: "0"}, (k, 0)),
            EngineVariant("newer runner", named, {RUNNER: "1"}, (k, 0)),
        ]
        return tuple(way for way in found if not (is_tiny and way.name in _ON_A_GPU))

    async def measure(self, trial: Trial) -> dict[str, Any]:
        """Measure each way, and return its figures. The engine without a draft is started once for all of them."""
        baseline, *others = self.ways(trial.folder, is_tiny=trial.is_tiny)
        write_models(trial.folder, is_tiny=trial.is_tiny)
        async with started(baseline, trial) as plain:
            measured = {}
            for way in others:
                async with started(way, trial) as engine:
                    measured[way.name] = await self._compare(plain, engine, contestants(way))
        return figures(measured)

    async def _compare(self, plain: BareEngine, engine: BareEngine, ks: Mapping[str, int | None]) -> Rates:
        """Measure the contestants of an engine and the baseline, in random order in each round; the first warms up."""
        chance, rates = random.Random(self.seed), Rates()
        for number in range(self.rounds + 1):
            for batch in self.batches:
                prompts = random_prompts(batch, _PROMPT_TOKENS, self.tokens, chance)
                for name in chance.sample((BASELINE, *ks), 1 + len(ks)):
                    k = ks.get(name)
                    if k is not None:
                        engine.set_k(k)
                    block = await (plain if name == BASELINE else engine).run(prompts, batch)
                    each = rates.setdefault(name, {}).setdefault(str(batch), {"total": [], "alone": []})
                    if number:
                        each["total"].append(block.tokens_per_s)
                        each["alone"].append(percentile([one.tokens_per_s or 0.0 for one in block.samples], 50))
        return rates


def contestants(way: EngineVariant) -> dict[str, int | None]:
    """Return the names under which an engine takes part, with the K to set for each."""
    return {f"{way.name}, K = {k}": k for k in way.live_ks} or {way.name: None}


def figures(measured: Mapping[str, Rates]) -> dict[str, Any]:
    """Return tokens/s by contestant and batch size, with the speed-up over the engine without a draft beside it."""
    found: dict[str, Any] = {}
    for rates in measured.values():
        for name, batches in rates.items():
            if name == BASELINE:
                continue
            ratios = {
                batch: ratio_of_rounds(np.array(each["total"]), np.array(rates[BASELINE][batch]["total"]))
                for batch, each in batches.items()
            }
            entries = {batch: _means([batches[batch]]) | {"speedup": ratio} for batch, ratio in ratios.items()}
            crossover = crossing({int(batch): ratio.value for batch, ratio in ratios.items()})
            found[name] = {**entries, "crossover_batch": crossover}
    of_all = [rates[BASELINE] for rates in measured.values()]
    return {BASELINE: {batch: _means([each[batch] for each in of_all]) for batch in of_all[0]}, **found}


def _means(rates: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    total, alone = ([value for each in rates for value in each[kind]] for kind in ("total", "alone"))
    return {
        "tokens_per_s": round(float(np.mean(total)), 1),
        "tokens_per_s_of_a_request": round(float(np.mean(alone)), 1),
    }


def crossing(speedups: Mapping[int, float]) -> float | None:
    """Return the batch size at which the speed-up falls to 1, on the line between two measured ones.

    Both axes are logarithmic. Returns the smallest size if the speed-up is never above 1, None if it always is.
    """
    sizes = sorted(speedups)
    if speedups[sizes[0]] <= 1:
        return float(sizes[0])
    for low, high in pairwise(sizes):
        above, below = math.log(speedups[low]), math.log(speedups[high])
        if below <= 0:
            return float(low * (high / low) ** (above / (above - below)))
    return None
