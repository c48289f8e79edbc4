"""Measures the pair in vLLM: its counters of speculation, step times, and differences in greedy text.

Speculation verifies several tokens in one pass. A pass of another size rounds differently, so if two tokens are almost
equally likely for the target, the other one can be chosen: at each difference the gap of their logits is measured. A
wide gap is a fault.
"""

import gzip
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from draft_model.core import PipelineError
from draft_model.evaluation.offline import expected_speedup
from draft_model.models import AcceptanceCounts, OfflineEngine, open_engine

MAX_ROUNDING_NATS = 0.25
"""Two logits near 16 are rounded to 0.125 in bfloat16, and each may be off by one such step."""
TIMED_TOKENS = 64
TIMED_ROUNDS = 5
TIMED_TURNS = 2
"""Engines on which each model is timed, alternating with the other model's because a machine's speed drifts."""
IDENTITY_LENGTH = 4
"""K of the comparison of greedy text."""


@dataclass(frozen=True)
class EngineRun:
    """The figures of one K in vLLM, one sequence at a time; by temperature, speeds of greedy decoding.

    `identical_share` is the share of greedy completions that are the same tokens without the draft.
    """

    num_speculative_tokens: int
    acceptance: dict[float, float]
    per_position: dict[float, tuple[float, ...]]
    mean_accepted_length: dict[float, float]
    identical_share: float
    tokens_per_s: float
    speedup: float
    expected_speedup: float


@dataclass(frozen=True)
class DecodeTimes:
    """Times of a decode step of one sequence, of target and draft."""

    target_ms: float
    draft_ms: float


@dataclass(frozen=True)
class EngineFigures:
    """All figures measured in vLLM: the runs, the speed without the draft before and after them, and the steps."""

    runs: tuple[EngineRun, ...]
    tokens_per_s_without_draft: tuple[float, float]
    steps: tuple[DecodeTimes, ...]


def engine_run(
    counted: Mapping[float, AcceptanceCounts], identical_share: float, tokens_per_s: float, without_draft: float,
    steps: Sequence[DecodeTimes],
) -> EngineRun:  # fmt: skip
    """The figures of a run with one K; `without_draft` is in tokens per second too."""
    greedy = counted[0.0]
    length = greedy.num_speculative_tokens
    return EngineRun(
        length,
        {degree: found.per_token for degree, found in counted.items()},
        {degree: found.per_position for degree, found in counted.items()},
        {degree: found.mean_length for degree, found in counted.items()},
        identical_share,
        tokens_per_s,
        tokens_per_s / without_draft,
        expected_speedup(greedy.conditional, length, mean(step.draft_ms / step.target_ms for step in steps)),
    )


@dataclass(frozen=True)
class TextDifference:
    """The first place at which a prompt's two texts differ, and the gap of their tokens' logits in float32."""

    prompt: int
    place: int
    gap_nats: float


@dataclass(frozen=True)
class IdentityReport:
    """The differences among `num_prompts` greedy completions."""

    num_prompts: int
    differences: tuple[TextDifference, ...]

    @property
    def share(self) -> float:
        """The share of completions that are the same."""
        return 1.0 - len(self.differences) / self.num_prompts

    def __str__(self) -> str:
        """The comparison in a sentence."""
        same = self.num_prompts - len(self.differences)
        summary = f"{same} of {self.num_prompts} greedy completions are the same with the draft"
        if not self.differences:
            return f"{summary}."
        widest = max(difference.gap_nats for difference in self.differences)
        verdict = "which" if widest <= MAX_ROUNDING_NATS else "more than"
        return (
            f"{summary}; where they differ the target sets the two tokens {widest:.3f} nats apart at most, {verdict} "
            "rounding to bfloat16 explains."
        )


def read_prompts(path: Path) -> list[str]:
    """The `prompt` of every record of a file of JSON lines, packed with gzip or not; PipelineError when it has none."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        prompts = [str(json.loads(line)["prompt"]) for line in data.decode().splitlines() if line.strip()]
    except OSError as error:
        raise PipelineError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"{path} has a line that is no JSON object with a prompt: {error!r}") from error
    if not prompts:
        raise PipelineError(f"{path} has no prompts")
    return prompts


@torch.inference_mode()
def compare(
    target: PreTrainedModel, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]],
    others: Sequence[Sequence[int]],
) -> IdentityReport:  # fmt: skip
    """Find the first difference of each prompt's two greedy texts, which include their end tokens."""
    found = []
    for number, (prompt, left, right) in enumerate(zip(prompts, texts, others, strict=True)):
        if list(left) == list(right):
            continue
        pairs = zip(left, right, strict=False)
        place = next(at for at, (one, other) in enumerate(pairs) if one != other)
        row = torch.tensor([[*prompt, *left[:place]]])
        logits = target(input_ids=row, use_cache=False).logits[0, -1].float()
        gap = logits[left[place]] - logits[right[place]]
        found.append(TextDifference(number, place, abs(float(gap))))
    return IdentityReport(len(prompts), tuple(found))


def check_identity(
    model: PreTrainedModel, target: Path, draft: Path, prompts: Sequence[Sequence[int]], **how: Any  # noqa: ANN401
) -> IdentityReport:  # fmt: skip
    """Compare greedy text of the target in vLLM with and without a draft of `IDENTITY_LENGTH`; `how` as for `serve`."""
    (alone,) = serve(target, None, prompts, num_speculative_tokens=0, **how)
    (drafted,) = serve(target, draft, prompts, num_speculative_tokens=IDENTITY_LENGTH, **how)
    return compare(model, prompts, alone.texts, drafted.texts)


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
            counted = engine.speculation(num_speculative_tokens) - before
            texts = [[*one.ids, *([] if one.stop is None else [one.stop])] for one in completions]
            served.append(OnlinePass(texts, counted if draft else None, sum(map(len, texts)) / engine.took_s))
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
    on_run: Callable[[int, int], None] = lambda done, total: None,
) -> EngineFigures:  # fmt: skip
    """Serve the prompts without the draft and with each K of `lengths`, one at a time, and time both models' steps.

    Greedily, then at each temperature; the tokens `stops` end a completion. A machine's speed drifts, so the runs
    without the draft come before and after all others, and the two models' steps are timed alternately.
    `on_run(done, total)` is called after every engine's run.
    """
    degrees = (0.0, *temperatures)
    # A draft's own context may be shorter than the target's.
    own = {name: value for name, value in (options or {}).items() if name != "max_model_len"}
    total = len(lengths) + 2 + TIMED_TURNS
    run = partial(serve, target, prompts=prompts, max_tokens=max_tokens, stops=stops, options=options)
    (before,) = run(None, num_speculative_tokens=0)
    steps: list[DecodeTimes] = []
    for done in range(1, TIMED_TURNS + 1):
        target_s = step_time_s(target, prompts[0], "full", options)
        steps.append(DecodeTimes(target_s * 1e3, step_time_s(draft, prompts[0], "piecewise", own) * 1e3))
        on_run(done + 1, total)
    found = []
    for done, length in enumerate(lengths, 2 + TIMED_TURNS):
        served = run(draft, num_speculative_tokens=length, temperatures=degrees)
        counted = {degree: one.acceptance for degree, one in zip(degrees, served, strict=True) if one.acceptance}
        same = sum(left == right for left, right in zip(served[0].texts, before.texts, strict=True))
        found.append((counted, same / len(prompts), served[0].tokens_per_s))
        on_run(done, total)
    (after,) = run(None, num_speculative_tokens=0)
    alone = (before.tokens_per_s, after.tokens_per_s)
    runs = (engine_run(counted, same, speed, mean(alone), tuple(steps)) for counted, same, speed in found)
    return EngineFigures(tuple(runs), alone, tuple(steps))
