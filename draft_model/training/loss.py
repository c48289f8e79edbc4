"""The loss: cross-entropy against the text, mixed with the divergence from a teacher's distribution.

Distillation is the forward Kullback-Leibler divergence KL(teacher || draft) at every token, as in "DistillSpec" (Zhou
et al., 2023): a draft is accepted as far as its distribution covers the target's.
"""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel


def next_token_logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Logits of every next token: ids (rows, tokens) -> (rows * (tokens - 1), vocabulary)."""
    # Through the model's own forward: sharded weights are gathered by hooks on it.
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    return logits


def cross_entropies(logits: Tensor, ids: Tensor) -> Tensor:
    """Nats of every next token: logits as above -> (rows * (tokens - 1),)."""
    return functional.cross_entropy(logits.float(), ids[:, 1:].flatten(), reduction="none")


def divergences(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """KL(teacher || draft) in nats at every position; vocabularies of one size, the teacher's padding cut off."""
    ours = functional.log_softmax(logits.float(), dim=-1)
    theirs = functional.log_softmax(teacher_logits[:, : logits.shape[1]].float(), dim=-1)
    return functional.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1)


def token_losses(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Cross-entropy in nats of every next token: ids (rows, tokens) -> losses (rows, tokens - 1)."""
    return cross_entropies(next_token_logits(model, ids), ids).view(ids.shape[0], -1)


class Teacher:
    """A target whose distribution a draft learns; `mix` is the share of the divergence in the loss, 0 to 1."""

    def __init__(self, model: PreTrainedModel, mix: float) -> None:
        self.mix = mix
        model.requires_grad_(False)
        self._model = model

    @torch.no_grad()
    def logits(self, ids: Tensor) -> Tensor:
        """What the target thinks comes next, as `next_token_logits`."""
        return next_token_logits(self._model, ids)
