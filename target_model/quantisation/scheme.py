"""The W8A8 scheme: weights int8 with a scale per output channel, activations int8 with a scale per token.

No calibration data is needed: a weight's scale comes from the weight, an activation's is computed at run time.
"""

from typing import Any

import torch
from torch import Tensor

INT8_MAX = 127
MATRIX_DIMS = 2
LINEAR_SUFFIXES = (
    "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
    "gate_proj.weight", "up_proj.weight", "down_proj.weight",
)  # fmt: skip
KEPT_SUFFIXES = ("embed_tokens.weight", "lm_head.weight")
IGNORED = ["lm_head"]


def is_quantised(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is a linear layer's matrix; embeddings, norms and the output head are kept."""
    return tensor.ndim == MATRIX_DIMS and name.endswith(LINEAR_SUFFIXES)


def is_unknown_matrix(name: str, num_dims: int) -> bool:
    """Whether a tensor is a matrix that is known neither as a linear layer's nor as one to keep."""
    is_matrix = num_dims == MATRIX_DIMS and name.endswith(".weight")
    return is_matrix and not name.endswith((*LINEAR_SUFFIXES, *KEPT_SUFFIXES))


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round to int8, symmetric per row: (out, in) floats -> (out, in) int8 and (out, 1) float32 scales.

    A row's scale is its largest magnitude over 127, so that the error is at most half a scale; a row of zeros has scale
    1. Raises ValueError when a value is not finite.
    """
    values = weight.to(torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise ValueError("a weight is not finite")
    largest = values.abs().amax(dim=1, keepdim=True)
    scale = torch.where(largest > 0, largest / INT8_MAX, torch.ones_like(largest))
    return (values / scale).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def dequantise_weight(quantised: Tensor, scale: Tensor) -> Tensor:
    """The float32 weight of an int8 matrix and its scales."""
    return quantised.to(torch.float32) * scale


def quantization_config() -> dict[str, Any]:
    """The part of `config.json` by which compressed-tensors recognises the scheme (its format `int-quantized`)."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(IGNORED),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
