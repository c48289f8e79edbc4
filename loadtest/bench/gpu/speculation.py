"""What a draft brings a 13B-sized INT8 target on a GPU, four ways, against an engine without a draft.

All engines are up at once and take turns on prompts of random tokens; nothing is between them and the benchmark. The
acceptance is made up, as the weights are: vLLM's synthetic rejection accepts drafts at a set rate.
"""

import math
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loadtest.bench.common.figures import percentile
from loadtest.bench.gpu.models import DRAFT, TARGET, TINY_DRAFT, TINY_TARGET, random_prompts, write_model
from loadtest.bench.gpu.ways import EngineVariant, Size, ways
from loadtest.bench.peers.bare_engine import BareEngine
from loadtest.tuning.statistics import ratio_of_rounds

_PROMPT_TOKENS = 128
"""Few, so that the KV cache of the largest batch fits beside four other engines: 0.8 MiB for each token."""


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """What is measured."""

    k: int = 5
    acceptance: float = 0.82
    batches: tuple[int, ...] = (1, 4, 16)
    tokens: int = 128
    rounds: int = 4
    seed: int = 0

    def ways(self, folder: Path, size: Size) -> tuple[EngineVariant, ...]:
        """Return the engines, on models in `folder`."""
        return ways(folder / "target", folder / "draft", self.k, self.acceptance, max(self.batches), size)


@dataclass(frozen=True, slots=True)
class BatchRates:
    """Rates of a contestant at a batch size, one for each round."""

    total: list[float]
    """Tokens/s of all requests together."""
    alone: list[float]
    """Median tokens/s of one request after its first token."""


Found = dict[tuple[str, int], BatchRates]
"""Rates by contestant and batch size."""


def contestants(found: Sequence[EngineVariant]) -> list[tuple[int, int | None, str]]:
    """Return the place of each contestant's engine, the K to set there, and the contestant's name."""
    return [
        (place, k, way.name if k is None else f"{way.name}, K = {k}")
        for place, way in enumerate(found)
        for k in (way.live_ks or (None,))
    ]


async def measure(plan: SpeculationPlan, folder: Path, size: Size, console: Console) -> Found:
    """Measure all contestants in random order in each round; the first round warms up."""
    write_model(folder / "target", TINY_TARGET if size.is_tiny else TARGET)
    write_model(folder / "draft", TINY_DRAFT if size.is_tiny else DRAFT)
    chance, found = random.Random(plan.seed), plan.ways(folder, size)
    rates: Found = {}
    async with AsyncExitStack() as stack:
        engines = []
        for way in found:
            with console.status(f"starting: {way.name}"):
                config = {"engine": {}, "engine_args": way.args}
                engine = BareEngine(config, env=way.env, changes_k=bool(way.live_ks))
            engines.append(await stack.enter_async_context(engine))
        for number in range(plan.rounds + 1):
            console.print(f"round {number} of {plan.rounds}")
            for batch in plan.batches:
                prompts = random_prompts(batch, _PROMPT_TOKENS, plan.tokens, chance)
                for place, k, name in chance.sample(contestants(found), len(contestants(found))):
                    if k is not None:
                        engines[place].set_k(k)
                    block = await engines[place].run(prompts, batch)
                    each = rates.setdefault((name, batch), BatchRates([], []))
                    if number:
                        each.total.append(block.tokens_per_s)
                        each.alone.append(percentile([one.tokens_per_s or 0.0 for one in block.samples], 50))
    return rates


def figures(rates: Found, baseline: str = "no draft") -> dict[str, Any]:
    """Return tokens/s and the speed-up over the engine without a draft, by contestant and batch size."""
    found: dict[str, Any] = {}
    for (name, batch), each in rates.items():
        entry = {
            "tokens_per_s": round(float(np.mean(each.total)), 1),
            "tokens_per_s_of_a_request": round(float(np.mean(each.alone)), 1),
        }
        if name != baseline:
            ratio = ratio_of_rounds(np.array(each.total), np.array(rates[baseline, batch].total))
            entry |= {"speedup": round(ratio.value, 3), "low": round(ratio.low, 3), "high": round(ratio.high, 3)}
        found.setdefault(name, {})[str(batch)] = entry
    for entries in found.values():
        speedups = {int(batch): each["speedup"] for batch, each in entries.items() if "speedup" in each}
        if speedups:
            entries["crossover_batch"] = crossing(speedups)
    return found


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


def table(found: Mapping[str, Any]) -> Table:
    """Return the figures as a table."""
    shown = Table(title="tokens/s (of one request; over no draft)", title_justify="left")
    shown.add_column("engine")
    batches = [batch for batch in next(iter(found.values())) if batch.isdecimal()]
    for batch in batches:
        shown.add_column(f"{batch} at once", justify="right")
    for name, entries in found.items():
        cells = (entries[batch] for batch in batches)
        shown.add_row(
            name,
            *(
                f"{each['tokens_per_s']:.0f} ({each['tokens_per_s_of_a_request']:.0f}; {each.get('speedup', 1):.2f})"
                for each in cells
            ),
        )
    return shown
