"""The loss: cross-entropy against the text, mixed with the divergence from a teacher's distribution.

Distillation is the forward Kullback-Leibler divergence KL(teacher || draft) at every token, as in "DistillSpec" (Zhou
et al., 2023): acceptance grows with the overlap of the draft's distribution and the target's.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel


def next_token_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits of every next token: ids (rows, tokens) -> (rows * (tokens - 1), vocabulary)."""
    # Through the model's own forward: sharded weights are gathered by hooks on it.
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    return logits


def log_probabilities(logits: Tensor) -> Tensor:
    """Logarithms of probabilities, in float32: the same shape."""
    return functional.log_softmax(logits.float(), dim=-1)


def cross_entropies(log_probs: Tensor, ids: Tensor) -> Tensor:
    """Nats of every next token, from `log_probabilities` of the logits above -> (rows * (tokens - 1),)."""
    return functional.nll_loss(log_probs, ids[:, 1:].flatten(), reduction="none")


def divergences(log_probs: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(teacher || draft) in nats at every position; vocabularies of one size, the teacher's padding cut off."""
    theirs = log_probabilities(teacher_logits[:, : log_probs.shape[1]])
    return functional.kl_div(log_probs, theirs, reduction="none", log_target=True).sum(dim=-1)


def token_losses(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Cross-entropy in nats of every next token: ids (rows, tokens) -> losses (rows, tokens - 1)."""
    return cross_entropies(log_probabilities(next_token_logits(model, ids)), ids).view(ids.shape[0], -1)


class Losses(NamedTuple):
    """Losses of a block in nats per token: the minimised mix, and its parts; `middle` is `text` inside completions."""

    mixed: Tensor
    text: Tensor
    middle: Tensor
    divergence: Tensor


def block_losses(logits: Tensor, ids: Tensor, is_middle: Tensor, teacher_logits: Tensor | None, mix: float) -> Losses:
    """The losses of a block: logits as above, `ids` and `is_middle` (rows, tokens), `mix` the teacher's share."""
    log_probs = log_probabilities(logits)
    plain = cross_entropies(log_probs, ids)
    text, inside = plain.mean(), is_middle[:, 1:].flatten()
    middle = (plain.detach() * inside).sum() / inside.sum().clamp(min=1)
    if teacher_logits is None:
        return Losses(text, text.detach(), middle, torch.zeros_like(middle))
    divergence = divergences(log_probs, teacher_logits).mean()
    return Losses((1.0 - mix) * text + mix * divergence, text.detach(), middle, divergence.detach())


class Teacher:
    """A target whose distribution a draft learns; `mix` is the share of the divergence in the loss, 0 to 1."""

    def __init__(self, model: PreTrainedModel, mix: float) -> None:
        self.mix = mix
        model.requires_grad_(False)
        self._model = model

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        """The target's logits of every next token, as `next_token_logits`."""
        return next_token_logits(self._model, ids)
