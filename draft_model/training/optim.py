"""The loss and the optimiser.

The loss is the cross-entropy against the text, mixed with the divergence from a teacher's distribution: the forward
Kullback-Leibler divergence KL(teacher || draft) at every token, as in "DistillSpec" (Zhou et al., 2023), because
acceptance grows with the overlap of the draft's distribution and the target's. Muon learns the matrices inside the
layers, AdamW embedding and norms, with one schedule for both.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from draft_model.core import TrainSettings
from draft_model.training.world import World

MATRIX_DIMS = 2


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


def learning_rate_scale(progress: float, step: int, settings: TrainSettings) -> float:
    """The factor on both learning rates: a short warm-up, level, then linear to zero at `progress` 1.

    `progress` is the share of the training budget that is spent, which on a shared machine is not a share of steps.
    """
    warmup = min(1.0, (step + 1) / settings.warmup_steps)
    decay = (1.0 - progress) / (1.0 - settings.decay_from)
    return warmup * max(0.0, min(1.0, decay))


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon trains this parameter: a matrix inside a layer, not the embedding, which is also the output head."""
    return parameter.ndim == MATRIX_DIMS and "embed" not in name and "lm_head" not in name


class Optimiser:
    """Two optimisers that step together; their state is keyed by parameter name, for any number of processes."""

    def __init__(self, model: nn.Module, settings: TrainSettings, world: World) -> None:
        named = list(model.named_parameters())
        self._model = model
        self._world = world
        self._settings = settings
        matrices = [parameter for name, parameter in named if is_hidden_matrix(name, parameter)]
        rest = [parameter for name, parameter in named if not is_hidden_matrix(name, parameter)]
        self._muon = torch.optim.Muon(
            matrices, lr=settings.muon_lr, weight_decay=settings.weight_decay, momentum=0.95, nesterov=True
        )
        self._adam = torch.optim.AdamW(rest, lr=settings.adam_lr, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, scale: float) -> float:
        """Apply the gradients, clipped, with both learning rates times `scale`; clear them, return their norm."""
        norm: Any = nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        for optimiser, rate in ((self._muon, self._settings.muon_lr), (self._adam, self._settings.adam_lr)):
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
            optimiser.step()  # type: ignore[no-untyped-call]
            optimiser.zero_grad(set_to_none=True)
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint; all processes must call it."""
        muon, adam = (self._world.optimiser_state(self._model, one) for one in (self._muon, self._adam))
        return {"muon": muon, "adam": adam}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint; all processes must call it, the main one with the state."""
        for name, optimiser in (("muon", self._muon), ("adam", self._adam)):
            self._world.load_optimiser_state(self._model, optimiser, state.get(name, {}))
