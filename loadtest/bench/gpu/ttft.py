"""Time to first token of a 13B-sized INT8 target on a GPU, by prompt tokens and by the tokens of a step.

One engine has the server's own step size, the other that of `vllm serve` on such a GPU. Nothing is cached.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench.gpu.models import TARGET, TINY_TARGET, random_prompts, write_model
from loadtest.bench.gpu.results import Ways
from loadtest.bench.gpu.ways import EngineVariant, Size
from loadtest.bench.peers.bare_engine import BareEngine
from loadtest.bench.runner.closed_loop import BenchPrompt
from loadtest.bench.runner.figures import percentile, text_table


@dataclass(frozen=True, slots=True)
class TtftPlan:
    """What is measured."""

    prompt_tokens: tuple[int, ...] = (512, 2048, 4096)
    step_tokens: tuple[int, ...] = (2048, 8192)
    crowd: int = 4
    """Long prompts that arrive together with as many short ones."""
    rounds: int = 20
    seed: int = 0

    def ways(self, folder: Path, size: Size) -> tuple[EngineVariant, ...]:
        """Return an engine for each step size; only the smaller one bounds long prompts."""
        common = size.common_args | {
            "model": str(folder / "target"),
            "max_model_len": 2 * max(self.prompt_tokens),
            "max_num_seqs": 2 * self.crowd,
        }
        if not size.is_tiny:
            common["gpu_memory_utilization"] = 0.44
        bounded = {"long_prefill_token_threshold": min(self.step_tokens) // 2}
        return tuple(
            EngineVariant(
                f"{tokens} a step", common | {"max_num_batched_tokens": tokens} | (bounded if not place else {})
            )
            for place, tokens in enumerate(self.step_tokens)
        )


Found = dict[str, dict[str, list[float]]]
"""TTFT in milliseconds by engine and kind of request."""


_TURNS = "in turns"
"""Both engines are measured as one, because they take turns."""


async def measure(plan: TtftPlan, folder: Path, size: Size, console: Console, measured: Ways) -> None:
    """Let the engines take turns on the same prompts; the first round warms up."""
    if _TURNS in measured:
        return
    write_model(folder / "target", TINY_TARGET if size.is_tiny else TARGET)
    chance, found = random.Random(plan.seed), plan.ways(folder, size)
    times: Found = {way.name: {} for way in found}
    async with AsyncExitStack() as stack:
        engines = []
        for way in found:
            with console.status(f"starting: {way.name}"):
                engine = BareEngine({"engine": {}, "engine_args": way.args}, env=way.env)
            engines.append((way.name, await stack.enter_async_context(engine)))
        for number in range(plan.rounds + 1):
            for kind, num_tokens, prompts in _loads(plan, chance):
                for name, engine in chance.sample(engines, len(engines)):
                    block = await engine.run(prompts, len(prompts))
                    samples = [one.ttft_ms for one in block.samples if one.prompt_tokens == num_tokens]
                    if number:
                        times[name].setdefault(kind, []).extend(each for each in samples if each is not None)
    measured[_TURNS] = times


def _loads(plan: TtftPlan, chance: random.Random) -> Sequence[tuple[str, int, Sequence[BenchPrompt]]]:
    """Return the kinds of a round: their name, the prompt length that is measured, and the requests sent at once."""
    loads = [(f"{tokens} alone", tokens, random_prompts(1, tokens, 8, chance)) for tokens in plan.prompt_tokens]
    short, long = min(plan.prompt_tokens), max(plan.prompt_tokens)
    crowd = [*random_prompts(plan.crowd, long, 8, chance), *random_prompts(plan.crowd, short, 8, chance)]
    return [*loads, (f"{short} behind {plan.crowd} of {long}", short, crowd)]


def figures(measured: Mapping[str, Found]) -> dict[str, Any]:
    """Return percentiles in milliseconds by engine and kind of request."""
    times = measured.get(_TURNS, {})
    return {
        name: {
            kind: {f"p{percent}": round(percentile(found, percent), 1) for percent in (50, 95)}
            for kind, found in kinds.items()
        }
        for name, kinds in times.items()
    }


def table(found: dict[str, Any]) -> Table:
    """Return the figures as a table."""
    rows = tuple(
        (kind, *(f"{kinds[kind]['p50']:.1f} / {kinds[kind]['p95']:.1f}" for kinds in found.values()))
        for kind in next(iter(found.values()))
    )
    return text_table("TTFT, p50 / p95 ms", ("prompt tokens", *found), rows)
