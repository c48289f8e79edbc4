"""Measures the pair in vLLM: its counters of speculation, differences in greedy text, and step times."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

from draft_model.evaluation.acceptance import AcceptanceCounts
from draft_model.evaluation.report import DecodeTimes, EngineFigures, engine_run
from draft_model.models.engine import OfflineEngine, open_engine

TIMED_TOKENS = 64
TIMED_ROUNDS = 5
TIMED_TURNS = 2
"""Engines on which each model is timed, alternating with the other model's because a machine's speed drifts."""
NUM_OTHER_RUNS = 2 + 2 * TIMED_TURNS


@dataclass(frozen=True)
class OnlinePass:
    """The result of one pass over the prompts; a text includes its end token, unless it was cut off."""

    texts: list[list[int]]
    acceptance: AcceptanceCounts | None
    tokens_per_s: float


def serve(
    target: Path, draft: Path | None, prompts: Sequence[Sequence[int]], *, num_speculative_tokens: int,
    max_tokens: int, stops: Sequence[int], temperatures: Sequence[float] = (0.0,),
    options: Mapping[str, Any] | None = None,
) -> list[OnlinePass]:  # fmt: skip
    """Complete all prompts at every temperature, one sequence at a time, on one engine.

    The tokens `stops` end a completion; `options` are vLLM's own settings. Raises PipelineError as `open_engine`.
    """
    with open_engine(
        target, draft, num_speculative_tokens=num_speculative_tokens, max_num_seqs=1, options=options
    ) as engine:
        engine.complete(prompts[:1], max_tokens=max_tokens)
        served = []
        for degree in temperatures:
            before = engine.speculation(num_speculative_tokens)
            completions = engine.complete(prompts, max_tokens=max_tokens, temperature=degree, stops=stops)
            counted = engine.speculation(num_speculative_tokens).since(before)
            texts = [[*one.ids, *([] if one.stop is None else [one.stop])] for one in completions]
            acceptance = AcceptanceCounts(counted.num_drafts, counted.accepted_at) if draft else None
            served.append(OnlinePass(texts, acceptance, sum(map(len, texts)) / engine.took_s))
        return served


def step_time_s(
    model: Path, prompt: Sequence[int], graphs: Literal["full", "piecewise"], options: Mapping[str, Any] | None = None
) -> float:
    """The median time of a decode step of one sequence, from the difference of a long and a short completion.

    `graphs` are the CUDA graphs that the model has in speculation; with others the steps' ratio would be another.
    """
    with open_engine(model, max_num_seqs=1, options=options, speculation_graphs=graphs) as engine:
        engine.complete([prompt], max_tokens=2, ignore_end=True)
        return median(_time_a_step(engine, prompt) for _ in range(TIMED_ROUNDS))


def _time_a_step(engine: OfflineEngine, prompt: Sequence[int]) -> float:
    took = []
    for tokens in (TIMED_TOKENS // 2, TIMED_TOKENS):
        begun = time.perf_counter()
        engine.complete([prompt], max_tokens=tokens, ignore_end=True)
        took.append(time.perf_counter() - begun)
    return max(1e-9, took[1] - took[0]) / (TIMED_TOKENS // 2)


def measure_engine(
    target: Path, draft: Path, prompts: Sequence[Sequence[int]], lengths: Sequence[int], max_tokens: int,
    stops: Sequence[int], temperatures: Sequence[float] = (), options: Mapping[str, Any] | None = None,
    on_run: Callable[[], None] = lambda: None,
) -> EngineFigures:  # fmt: skip
    """Serve the prompts without the draft and with each K of `lengths`, one at a time, and time both models' steps.

    Greedily, then at each temperature; the tokens `stops` end a completion. A machine's speed drifts, so the runs
    without the draft come before and after all others, and the two models' steps are timed alternately. `on_run` is
    called after every engine's run, `len(lengths) + NUM_OTHER_RUNS` times.
    """
    degrees = (0.0, *temperatures)
    serve_alone = partial(
        serve, target, None, prompts, num_speculative_tokens=0, max_tokens=max_tokens, stops=stops, options=options
    )
    (before,) = serve_alone()
    on_run()
    # A draft's own context may be shorter than the target's.
    own = {name: value for name, value in (options or {}).items() if name != "max_model_len"}
    steps: list[DecodeTimes] = []
    for _ in range(TIMED_TURNS):
        target_s = step_time_s(target, prompts[0], "full", options)
        on_run()
        steps.append(DecodeTimes(target_s * 1e3, step_time_s(draft, prompts[0], "piecewise", own) * 1e3))
        on_run()
    found = []
    for length in lengths:
        served = serve(
            target, draft, prompts, num_speculative_tokens=length, max_tokens=max_tokens, stops=stops,
            temperatures=degrees, options=options,
        )  # fmt: skip
        counted = {degree: one.acceptance for degree, one in zip(degrees, served, strict=True) if one.acceptance}
        same = sum(left == right for left, right in zip(served[0].texts, before.texts, strict=True))
        found.append((counted, same / len(prompts), served[0].tokens_per_s))
        on_run()
    (after,) = serve_alone()
    on_run()
    alone = (before.tokens_per_s, after.tokens_per_s)
    runs = (engine_run(counted, same, speed, mean(alone), tuple(steps)) for counted, same, speed in found)
    return EngineFigures(tuple(runs), alone, tuple(steps))
