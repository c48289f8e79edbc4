"""The optimiser: Muon for the matrices inside the layers, AdamW for embedding and norms, one schedule for both."""

from typing import Any

import torch
from torch import Tensor, nn

from draft_model.core.presets import TrainSettings
from draft_model.training.world import World

MATRIX_DIMS = 2


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
