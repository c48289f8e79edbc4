"""Compares greedy text with and without a draft, and measures how close the target's choice was at each difference.

Speculation verifies several tokens in one pass. A pass of another size rounds differently, so if two tokens are almost
equally likely for the target, the other one can be chosen. A wide gap is a fault.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from draft_model.core.errors import PipelineError

MAX_ROUNDING_NATS = 0.25
"""Two logits near 16 are rounded to 0.125 in bfloat16, and each may be off by one such step."""


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


def describe(identity: IdentityReport) -> str:
    """The comparison in a sentence."""
    same = identity.num_prompts - len(identity.differences)
    summary = f"{same} of {identity.num_prompts} greedy completions are the same with the draft"
    if not identity.differences:
        return f"{summary}."
    widest = max(difference.gap_nats for difference in identity.differences)
    verdict = "which" if widest <= MAX_ROUNDING_NATS else "more than"
    return (
        f"{summary}; where they differ the target sets the two tokens {widest:.3f} nats apart at most, {verdict} "
        "rounding to bfloat16 explains."
    )
