"""Kinds of GPUs: their peaks, memory and prices."""

import re
from typing import NamedTuple

import torch


class Gpu(NamedTuple):
    """A kind of GPU: dense bfloat16 operations per second, memory, and a rough on-demand price per hour."""

    peak_flops: float
    gib: int
    dollars: float


GPUS = {
    "a100": Gpu(312e12, 80, 1.8),
    "h100": Gpu(989e12, 80, 2.9),
    "h100-pcie": Gpu(756e12, 80, 2.4),
    "h100-nvl": Gpu(835e12, 94, 2.6),
    "h200": Gpu(989e12, 141, 3.6),
    "h200-nvl": Gpu(835e12, 141, 3.4),
    "b200": Gpu(2250e12, 192, 5.5),
    "l40s": Gpu(362e12, 48, 1.0),
    "l4": Gpu(121e12, 24, 0.7),
    "a10": Gpu(125e12, 24, 0.7),
    "a10g": Gpu(70e12, 24, 1.0),
    "mi300x": Gpu(1307e12, 192, 3.0),
}
"""Peaks from the makers' data sheets; SXM unless the key names another variant."""


def known_flops(name: str) -> float | None:
    """The table's figure for a GPU by the name that torch reports; None for an unknown GPU or a slice of one."""
    # Whole words: "a10" is in A10G and A100, "a100" in RTX A1000. The key with the most words names the variant.
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    fitting = [gpu for gpu in GPUS if words.issuperset(gpu.split("-"))]
    if "mig" in words or not fitting:
        return None
    return GPUS[max(fitting, key=lambda gpu: gpu.count("-"))].peak_flops


def device_name() -> str:
    """The device that this process trains on, in words."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU cores"
