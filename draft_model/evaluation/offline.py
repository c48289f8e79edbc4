"""Target and draft in transformers, over completions of held-out code: what is accepted, at which place, of which kind.

At a temperature the engine's draft still proposes its most likely token, accepted with the probability that the target
gives it: as often as a text drawn from the target has just that token there.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from draft_model.data.fim import Split
from draft_model.data.layouts import LayoutEncoder
from draft_model.evaluation.acceptance import Acceptance, replay
from draft_model.evaluation.kinds import Kind, kinds_of_pieces

MAX_DRAFT = 8
SEED = 0


@dataclass
class Tally:
    """What was found so far."""

    by_length: dict[int, Acceptance] = field(default_factory=dict)
    seen: Counter[Kind] = field(default_factory=Counter)
    foretold: Counter[Kind] = field(default_factory=Counter)
    num_tokens: int = 0
    num_foretold: int = 0

    @property
    def agreement(self) -> float:
        """The share of the target's tokens that the draft foretells."""
        return self.num_foretold / self.num_tokens if self.num_tokens else 0.0

    def by_kind(self) -> dict[str, tuple[float, int]]:
        """For each kind the share that was foretold, and how many tokens that is of."""
        return {kind.value: (self.foretold[kind] / max(1, self.seen[kind]), self.seen[kind]) for kind in Kind}

    def add(self, matches: Sequence[bool], kinds: Sequence[Kind]) -> None:
        """Count one completion of `len(kinds)` tokens; `matches` may go on past its end."""
        for length in range(1, MAX_DRAFT + 1):
            found = replay(matches, length, len(kinds))
            self.by_length[length] = self.by_length[length] + found if length in self.by_length else found
        own = list(zip(kinds, matches, strict=False))
        self.seen.update(kinds)
        self.foretold.update(kind for kind, is_match in own if is_match)
        self.num_tokens += len(kinds)
        self.num_foretold += sum(is_match for _, is_match in own)


@dataclass(frozen=True)
class Pair:
    """A target and its draft, in evaluation mode, with their encoder."""

    target: PreTrainedModel
    draft: PreTrainedModel
    encoder: LayoutEncoder


@torch.inference_mode()
def complete(
    pair: Pair, prompt: Sequence[int], max_tokens: int, temperature: float = 0.0, *, stops: Sequence[int] = ()
) -> list[int]:
    """What the target writes behind a prompt, up to the first of the tokens `stops` and with it; without any, on."""
    ids = torch.tensor([list(prompt)])
    sampling: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    )
    generator: Any = pair.target
    # A model's own defaults, such as a penalty for repetition, are not the engine's.
    generator.generation_config = GenerationConfig(eos_token_id=list(stops) or None)  # type: ignore[no-untyped-call]
    output: Tensor = generator.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, pad_token_id=pair.encoder.end, **sampling
    )
    written: list[int] = output[0, len(prompt) :].tolist()
    return written


@torch.inference_mode()
def foretold(pair: Pair, prompt: Sequence[int], written: Sequence[int]) -> list[bool]:
    """For each written token, whether the draft thinks it the likeliest behind what stands before it."""
    row = torch.tensor([[*prompt, *written]])
    logits = pair.draft(input_ids=row, use_cache=False).logits[0, len(prompt) - 1 : -1]
    matches: list[bool] = (logits.argmax(dim=-1) == row[0, len(prompt) :]).tolist()
    return matches


def measure(
    pair: Pair,
    splits: Sequence[Split],
    max_tokens: int,
    temperature: float = 0.0,
    on_split: Callable[[int, int], None] = lambda done, total: None,
) -> Tally:
    """Acceptance over what the target writes at the cursors of `splits`, greedily unless a temperature is given."""
    torch.manual_seed(SEED)
    tally = Tally()
    for number, split in enumerate(splits):
        prompt = pair.encoder.encode_prompt(split.before, split.typed, split.after)
        written = complete(pair, prompt, max_tokens, temperature, stops=pair.encoder.stops)
        beyond = complete(pair, [*prompt, *written], MAX_DRAFT, temperature)
        tally.add(foretold(pair, prompt, [*written, *beyond]), token_kinds(pair.encoder, split, written))
        on_split(number + 1, len(splits))
    return tally


def token_kinds(encoder: LayoutEncoder, split: Split, written: Sequence[int]) -> list[Kind]:
    """The kind of every written token, from the whole text with the completion in its place; the end is syntax."""
    pieces, shown = [], ""
    for at in range(len(written)):
        longer = encoder.decode(written[: at + 1])
        pieces.append(longer[len(shown) :])
        shown = longer
    text = split.before + split.typed + shown + split.after
    return kinds_of_pieces(text, len(split.before + split.typed), pieces)
