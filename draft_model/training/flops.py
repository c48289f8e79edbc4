"""Counts the operations of a token and the peak of a device; utilisation is their ratio.

Counted as in "PaLM" (Chowdhery et al., 2022), appendix B: six operations a parameter and token for forward and
backward, and the attention scores on top, halved because they are causal. Recomputation would not count.
"""

import re
import time

import torch

from draft_model.core import ModelShape

PEAK_FLOPS = {
    "a100": 312e12, "h100": 989e12, "h100-pcie": 756e12, "h100-nvl": 835e12, "h200": 989e12, "h200-nvl": 835e12,
    "b200": 2250e12, "l40s": 362e12, "l4": 121e12, "a10": 125e12, "a10g": 70e12, "mi300x": 1307e12,
}  # fmt: skip
"""Dense bfloat16 operations per second from the makers' data sheets; SXM unless the key names another variant."""
CPU_PROBE_SIZE = 1024
GPU_PROBE_SIZE = 8192
"""Smaller products do not occupy a whole GPU: the peak would seem low, and utilisation above 100%."""
PROBE_RUNS = 4


def flops_per_token(shape: ModelShape, row_tokens: float) -> float:
    """Operations that training takes per token, in rows of `row_tokens`."""
    dense = shape.num_matrix_parameters + shape.vocab_size * shape.hidden_size
    attention = shape.num_layers * shape.num_heads * shape.head_dim * row_tokens
    return 6.0 * dense + 6.0 * attention


def peak_flops(device: str) -> float:
    """The peak of a device: from the table for a known GPU, measured for a CPU or any other GPU."""
    if not device.startswith("cuda"):
        return measured_flops(device, CPU_PROBE_SIZE)
    known = known_flops(torch.cuda.get_device_name(device))
    return measured_flops(device, GPU_PROBE_SIZE) if known is None else known


def known_flops(name: str) -> float | None:
    """The table's figure for a GPU by the name that torch reports; None for an unknown GPU or a slice of one."""
    # Whole words: "a10" is in A10G and A100, "a100" in RTX A1000. The key with the most words names the variant.
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    if "mig" in words:
        return None
    fitting = [gpu for gpu in PEAK_FLOPS if words.issuperset(gpu.split("-"))]
    return PEAK_FLOPS[max(fitting, key=lambda gpu: gpu.count("-"))] if fitting else None


def measured_flops(device: str, size: int) -> float:
    """Operations a second in the best of a few bfloat16 products of square matrices, `size` rows each."""
    square = torch.ones(size, size, dtype=torch.bfloat16, device=device)
    best_s = float("inf")
    for _ in range(PROBE_RUNS):
        begun = time.perf_counter()
        float((square @ square)[0, 0])
        best_s = min(best_s, time.perf_counter() - begun)
    return 2.0 * size**3 / best_s
