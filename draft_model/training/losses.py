"""The loss of a block, and the optimiser.

The loss is the cross-entropy against the text, mixed with the divergence from a teacher's distribution: the forward
Kullback-Leibler divergence KL(teacher || draft) at every token, as in "DistillSpec" (Zhou et al., 2023), because
acceptance grows with the overlap of the draft's distribution and the target's.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from draft_model.core import Preset

MATRIX_DIMS = 2
LEAST = 1e-6
"""Floor of the probability of all tokens that are not labelled, which keeps its logarithm finite."""


def next_token_logits(model: nn.Module, ids: Tensor) -> Tensor:
    """Logits of every next token: ids (rows, tokens) -> (rows * (tokens - 1), vocabulary)."""
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    return logits


def token_losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Cross-entropy in nats of every next token, from the logits above -> (rows * (tokens - 1),)."""
    return functional.cross_entropy(logits.float(), ids[:, 1:].flatten(), reduction="none")


def divergences(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(teacher || draft) in nats at every position; vocabularies of one size, the teacher's padding cut off."""
    ours, theirs = (functional.log_softmax(one.float(), -1) for one in (logits, teacher_logits[:, : logits.shape[1]]))
    return functional.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1)


def label_divergences(logits: Tensor, likely: Tensor, logprobs: Tensor) -> Tensor:
    """KL(teacher || draft) in nats at every position, with all tokens that are not labelled taken as one.

    `likely` and `logprobs` are (positions, labels): tokens and the logarithms of the teacher's probabilities. A label
    of probability 0 counts as not labelled.
    """
    ours, theirs = functional.log_softmax(logits.float(), -1).gather(1, likely), logprobs.float()
    is_label = theirs.isfinite()
    known, drafted = theirs.exp(), ours.exp() * is_label
    rest, rest_drafted = ((1.0 - one.sum(-1)).clamp(min=LEAST) for one in (known, drafted))
    inside = (known * torch.where(is_label, theirs - ours, 0.0)).sum(-1)
    return inside + rest * (rest.log() - rest_drafted.log())


class Losses(NamedTuple):
    """Losses of a block in nats per token: the minimised mix, and its parts; `middle` is `text` inside completions."""

    mixed: Tensor
    text: Tensor
    middle: Tensor
    divergence: Tensor


def block_losses(logits: Tensor, ids: Tensor, is_middle: Tensor, divergence: Tensor | None, mix: float) -> Losses:
    """The losses of a block: logits and `divergence` as above, `ids` and `is_middle` (rows, tokens).

    `mix` is the share of the divergence, if there is one.
    """
    plain = token_losses(logits, ids)
    text, inside = plain.mean(), is_middle[:, 1:].flatten()
    middle = (plain.detach() * inside).sum() / inside.sum().clamp(min=1)
    if divergence is None:
        return Losses(text, text.detach(), middle, torch.zeros_like(middle))
    mean = divergence.mean()
    return Losses((1.0 - mix) * text + mix * mean, text.detach(), middle, mean.detach())


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon trains this parameter: a matrix inside a layer, not the embedding, which is also the output head."""
    return parameter.ndim == MATRIX_DIMS and "embed" not in name and "lm_head" not in name


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices inside the layers and AdamW for embedding and norms, as one optimiser."""

    def __init__(self, model: nn.Module, preset: Preset) -> None:
        chosen: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, parameter in model.named_parameters():
            chosen[is_hidden_matrix(name, parameter)].append(parameter)
        self._parts: tuple[Any, ...] = (
            torch.optim.Muon(chosen[True], lr=preset.muon_lr, weight_decay=preset.weight_decay),
            torch.optim.AdamW(chosen[False], lr=preset.adam_lr, betas=(0.9, 0.98), weight_decay=0.0),
        )
        super().__init__([group for part in self._parts for group in part.param_groups], {})

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 - as in torch
        """Apply the gradients; each part works on its own group of the shared state."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state
            part.step()
