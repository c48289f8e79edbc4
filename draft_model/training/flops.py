"""How much arithmetic a token takes, and how much a device could do: utilisation is one over the other.

Counted as in "PaLM" (Chowdhery et al., 2022), appendix B: six operations a parameter and token for forward and
backward, and the attention scores on top, halved because they are causal. Recomputation would not count.
"""

import time

import torch

from draft_model.presets import Shape

PEAK_FLOPS = {
    "a100": 312e12, "h100": 989e12, "h200": 989e12, "b200": 2250e12, "l40s": 362e12, "a10": 125e12, "mi300x": 1307e12,
}  # fmt: skip
"""Dense bfloat16 operations a second, from the makers' data sheets."""
PROBE_SIZE = 1024
PROBE_RUNS = 4


def flops_per_token(shape: Shape, row_tokens: float) -> float:
    """Operations that training takes per token, in rows of `row_tokens`."""
    dense = shape.num_matrix_parameters + shape.vocab_size * shape.hidden_size
    attention = shape.num_layers * shape.num_heads * shape.head_dim * row_tokens
    return 6.0 * dense + 6.0 * attention


def peak_flops(device: str) -> float:
    """What a device can do: from the table for a GPU, measured for a CPU or a GPU that is not in it."""
    if device.startswith("cuda"):
        name = torch.cuda.get_device_name(device).lower()
        known = next((flops for gpu, flops in PEAK_FLOPS.items() if gpu in name), None)
        if known is not None:
            return known
    return _measure(device)


def _measure(device: str) -> float:
    """The best of a few bfloat16 matrix products."""
    square = torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=torch.bfloat16, device=device)
    best_s = float("inf")
    for _ in range(PROBE_RUNS):
        begun = time.perf_counter()
        float((square @ square)[0, 0])
        best_s = min(best_s, time.perf_counter() - begun)
    return 2.0 * PROBE_SIZE**3 / best_s
