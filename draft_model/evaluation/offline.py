"""Measures acceptance with target and draft in transformers, over completions of held-out code: by place and by kind.

At a temperature the engine's draft still proposes its most likely token. It is accepted with the probability that the
target gives it, which is how often a text drawn from the target has that token.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from draft_model.data.encoder import TemplateEncoder
from draft_model.data.fim import Split
from draft_model.evaluation.acceptance import AcceptanceCounts, replay, share_interval
from draft_model.evaluation.kinds import Kind, kinds_of_pieces

MAX_DRAFT = 8
SEED = 0


@dataclass(frozen=True)
class Counted:
    """The counts of one completion: its tokens, those that the draft predicts, and acceptance by K."""

    num_tokens: int
    num_predicted: int
    by_length: dict[int, AcceptanceCounts]


@dataclass
class AcceptanceTally:
    """The counts of all completions so far."""

    completions: list[Counted] = field(default_factory=list)
    seen: Counter[Kind] = field(default_factory=Counter)
    predicted: Counter[Kind] = field(default_factory=Counter)

    @property
    def num_tokens(self) -> int:
        """Tokens of all completions."""
        return sum(one.num_tokens for one in self.completions)

    @property
    def agreement(self) -> float:
        """The share of the target's tokens that the draft predicts."""
        return sum(one.num_predicted for one in self.completions) / max(1, self.num_tokens)

    @property
    def agreement_interval(self) -> tuple[float, float]:
        """The 95% interval of `agreement` over draws of cursors."""
        pairs = [(one.num_predicted, one.num_tokens) for one in self.completions]
        return share_interval([hits for hits, _ in pairs], [total for _, total in pairs])

    def acceptance(self, length: int) -> AcceptanceCounts:
        """The counts of drafts of `length` tokens."""
        return sum((one.by_length[length] for one in self.completions), AcceptanceCounts(0, (0,) * length))

    def acceptance_interval(self, length: int) -> tuple[float, float]:
        """The 95% interval of accepted over drafted tokens, over draws of cursors."""
        found = [one.by_length[length] for one in self.completions]
        return share_interval([sum(one.accepted_at) for one in found], [one.num_drafts * length for one in found])

    def by_kind(self) -> dict[str, tuple[float, int]]:
        """For each kind the share of tokens that the draft predicts, and the number of tokens."""
        return {kind.value: (self.predicted[kind] / max(1, self.seen[kind]), self.seen[kind]) for kind in Kind}

    def add(self, matches: Sequence[bool], kinds: Sequence[Kind]) -> None:
        """Count one completion of `len(kinds)` tokens; `matches` may go on past its end."""
        predicted = [kind for kind, is_match in zip(kinds, matches, strict=False) if is_match]
        by_length = {length: replay(matches, length, len(kinds)) for length in range(1, MAX_DRAFT + 1)}
        self.completions.append(Counted(len(kinds), len(predicted), by_length))
        self.seen.update(kinds)
        self.predicted.update(predicted)


@dataclass(frozen=True)
class Pair:
    """A target and its draft, in evaluation mode, with their encoder."""

    target: PreTrainedModel
    draft: PreTrainedModel
    encoder: TemplateEncoder


@torch.inference_mode()
def complete(
    pair: Pair, prompt: Sequence[int], max_tokens: int, temperature: float = 0.0, *, stops: Sequence[int] = ()
) -> list[int]:
    """The target's completion of a prompt, up to and with the first of the tokens `stops`, if there are any."""
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
def draft_matches(pair: Pair, prompt: Sequence[int], written: Sequence[int]) -> list[bool]:
    """For each written token, whether it is the draft's most likely token behind the text before it."""
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
) -> AcceptanceTally:
    """Measure acceptance over the target's completions at the cursors of `splits`; greedy at temperature 0."""
    torch.manual_seed(SEED)
    tally = AcceptanceTally()
    for number, split in enumerate(splits):
        prompt = pair.encoder.encode_prompt(split.before, split.typed, split.after)
        written = complete(pair, prompt, max_tokens, temperature, stops=pair.encoder.stops)
        beyond = complete(pair, [*prompt, *written], MAX_DRAFT, temperature)
        tally.add(draft_matches(pair, prompt, [*written, *beyond]), token_kinds(pair.encoder, split, written))
        on_split(number + 1, len(splits))
    return tally


def token_kinds(encoder: TemplateEncoder, split: Split, written: Sequence[int]) -> list[Kind]:
    """The kind of every written token in the text with the completion inserted; the end token is syntax."""
    pieces, shown = [], ""
    for at in range(len(written)):
        longer = encoder.decode(written[: at + 1])
        pieces.append(longer[len(shown) :])
        shown = longer
    text = split.before + split.typed + shown + split.after
    kinds = kinds_of_pieces(text, len(split.before + split.typed), pieces)
    # An end token has no text of its own, so the text behind the cursor must not decide its kind.
    return [Kind.SYNTAX if token in encoder.stops else kind for token, kind in zip(written, kinds, strict=True)]
