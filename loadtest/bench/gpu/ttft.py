"""Time to first token of a 13B-sized INT8 target on a GPU, by prompt tokens and by the tokens of a step.

One engine has the server's own step size, the other that of `vllm serve` on such a GPU. Nothing is cached.
"""

import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.bench.gpu.engines import EngineVariant, Trial, engine_args, random_prompts, started, write_models
from loadtest.bench.runner.figures import percentile
from loadtest.bench.runner.loops import BenchPrompt

_GPU_SHARE = 0.44
_TOKENS = 8


@dataclass(frozen=True, slots=True)
class TtftPlan:
    """What is measured."""

    prompt_tokens: tuple[int, ...] = (512, 2048, 4096)
    step_tokens: tuple[int, ...] = (2048, 8192)
    crowd: int = 4
    """Long prompts that arrive together with as many short ones."""
    rounds: int = 20
    seed: int = 0

    def ways(self, folder: Path, *, is_tiny: bool = False) -> tuple[EngineVariant, ...]:
        """Return an engine for each step size; only the smaller one bounds long prompts."""
        common = engine_args(
            folder / "target",
            is_tiny=is_tiny,
            gpu_share=_GPU_SHARE,
            max_model_len=2 * max(self.prompt_tokens),
            max_num_seqs=2 * self.crowd,
        )
        found = []
        for tokens in self.step_tokens:
            bounded = {"long_prefill_token_threshold": tokens // 2} if tokens == min(self.step_tokens) else {}
            found.append(EngineVariant(f"{tokens} a step", common | {"max_num_batched_tokens": tokens} | bounded))
        return tuple(found)

    async def measure(self, trial: Trial) -> dict[str, Any]:
        """Let the engines take turns on the same prompts; the first round warms up. Return percentiles of the TTFT."""
        write_models(trial.folder, is_tiny=trial.is_tiny)
        chance, ways = random.Random(self.seed), self.ways(trial.folder, is_tiny=trial.is_tiny)
        times: dict[str, dict[str, list[float]]] = {way.name: {} for way in ways}
        async with AsyncExitStack() as stack:
            engines = [(way.name, await stack.enter_async_context(started(way, trial))) for way in ways]
            for number in range(self.rounds + 1):
                for kind, num_tokens, prompts in self._loads(chance):
                    for name, engine in chance.sample(engines, len(engines)):
                        block = await engine.run(prompts, len(prompts))
                        samples = [one.ttft_ms for one in block.samples if one.prompt_tokens == num_tokens]
                        if number:
                            times[name].setdefault(kind, []).extend(each for each in samples if each is not None)
        return {
            name: {kind: {f"p{each}": percentile(found, each) for each in (50, 95)} for kind, found in kinds.items()}
            for name, kinds in times.items()
        }

    def _loads(self, chance: random.Random) -> Sequence[tuple[str, int, Sequence[BenchPrompt]]]:
        """Return the kinds of a round: name, the prompt length that is measured, and the requests sent at once."""
        loads = [
            (f"{tokens} alone", tokens, random_prompts(1, tokens, _TOKENS, chance)) for tokens in self.prompt_tokens
        ]
        short, long = min(self.prompt_tokens), max(self.prompt_tokens)
        crowd = [prompt for tokens in (long, short) for prompt in random_prompts(self.crowd, tokens, _TOKENS, chance)]
        return [*loads, (f"{short} behind {self.crowd} of {long}", short, crowd)]
