"""Measures how much of a draft the target accepts, offline from the text that the target writes in transformers.

A greedy draft of K tokens is accepted up to its first token that the target would not have written. If the first j-1
tokens are accepted, the draft's j-th token is its prediction behind the same text: one pass of the draft over the
target's text gives every draft of every length.

A step yields the accepted tokens and one of the target's own, so the next draft starts behind that one. A draft that
runs over the end of the completion counts whole, as in the engine, which verifies it before it sees the end. This needs
the text that the target would write behind the end.

At a temperature the engine's draft still proposes its most likely token. It is accepted with the probability that the
target gives it, which is how often a text drawn from the target has that token.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt

import torch
from transformers import PreTrainedModel

from draft_model.data.fim import Split
from draft_model.data.tokenizer import TemplateEncoder
from draft_model.evaluation.kinds import Kind, kinds_of_pieces
from draft_model.models import AcceptanceCounts, write_tokens

MAX_DRAFT = 8
SEED = 0


def replay(matches: Sequence[bool], num_speculative_tokens: int, num_tokens: int | None = None) -> AcceptanceCounts:
    """Speculate over one completion of `num_tokens` tokens, all of `matches` when not given.

    `matches[i]` says whether the draft predicts token i from those before it. Matches past the completion's end are for
    the text that the target would write there. The first token comes with the prompt's own step, without a draft.
    """
    accepted = [0] * num_speculative_tokens
    drafts, at = 0, 1
    while at < (len(matches) if num_tokens is None else num_tokens):
        drafts += 1
        length = 0
        while length < num_speculative_tokens and at + length < len(matches) and matches[at + length]:
            accepted[length] += 1
            length += 1
        at += length + 1
    return AcceptanceCounts(drafts, tuple(accepted))


def share_interval(hits: Sequence[int], totals: Sequence[int]) -> tuple[float, float]:
    """The 95% interval of a share whose trials come in groups: the tokens of a completion are one draw.

    By the variance of a ratio of sums over groups (Cochran, "Sampling Techniques", 1977, section 6.3); 0 to 1 for fewer
    than two groups.
    """
    total, num_groups = sum(totals), len(totals)
    if not total or num_groups < 2:  # noqa: PLR2004
        return 0.0, 1.0
    share = sum(hits) / total
    squares = sum((hit - share * of) ** 2 for hit, of in zip(hits, totals, strict=True))
    width = 1.96 * sqrt(squares * num_groups / (num_groups - 1)) / total
    return max(0.0, share - width), min(1.0, share + width)


def expected_tokens(acceptance: float, num_speculative_tokens: int) -> float:
    """Expected tokens of a step if each drafted token is accepted with probability a: (1 - a^(K+1)) / (1 - a).

    Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), equation 1.
    """
    if acceptance >= 1.0:
        return float(num_speculative_tokens + 1)
    return (1.0 - acceptance ** (num_speculative_tokens + 1)) / (1.0 - acceptance)


def expected_speedup(acceptance: float, num_speculative_tokens: int, draft_step_share: float) -> float:
    """Expected factor on tokens a second; `draft_step_share` is the draft's step over the target's (theorem 3.8)."""
    return expected_tokens(acceptance, num_speculative_tokens) / (num_speculative_tokens * draft_step_share + 1.0)


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
        written = write_tokens(pair.target, prompt, max_tokens, temperature, stops=pair.encoder.stops)
        beyond = write_tokens(pair.target, [*prompt, *written], MAX_DRAFT, temperature)
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
