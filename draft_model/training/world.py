"""The processes of one training run and their devices: a single process, or those that torchrun started.

Each of several processes has a shard of the weights (FSDP2), on GPUs and on CPUs, so that tests on a CPU run the code
for GPUs. Gradients are averaged over processes.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer
from transformers import PreTrainedModel

M = TypeVar("M", bound=PreTrainedModel)
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
CPU_PROBE_SIZE = 1024
GPU_PROBE_SIZE = 8192
"""Smaller products do not occupy a whole GPU: the peak would seem low, and utilisation above 100%."""
PROBE_RUNS = 4


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


@dataclass(frozen=True)
class World:
    """The rank of this process, the number of processes, the device, and whether torch.compile is used."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    is_compiled: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """The device in words."""
        return (
            torch.cuda.get_device_name(self.device) if self.device != "cpu" else f"{torch.get_num_threads()} CPU cores"
        )

    def shard(self, model: M) -> M:
        """Move the model to the device, shard it over several processes, and compile its layers."""
        kinds = set(model._no_split_modules or ())  # Every family names the class of its layers here.
        layers = [module for module in model.modules() if type(module).__name__ in kinds]
        for layer in layers if self.is_compiled else ():
            # Layer by layer: the layers are alike, so one compilation serves all. Only `forward`, because the hooks
            # that gather and free sharded weights run around it.
            layer.forward = self.compiled(layer.forward)
        if self.size == 1:
            return cast("M", model.to(self.device))  # type: ignore[arg-type]
        # Each layer is moved and sharded on its own: no GPU needs memory for a whole teacher.
        mesh = init_device_mesh(torch.device(self.device).type, (self.size,))
        # On a CPU autocast alone decides the precision, as in a single process.
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if self.device != "cpu" else MixedPrecisionPolicy()
        for layer in layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model

    def compiled(self, function: F) -> F:
        """The function, compiled for the shapes of its arguments if compilation is on."""
        return cast("F", torch.compile(function, dynamic=False)) if self.is_compiled else function

    def mean(self, values: list[float]) -> list[float]:
        """Each value's mean over the processes."""
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64 if self.device == "cpu" else torch.float32, device=self.device)
        dist.all_reduce(total)
        return [float(value) / self.size for value in total.tolist()]

    def broadcast(self, value: T) -> T:
        """The main process's value, on all processes. All must call it."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """Wait until all processes call it."""
        if self.size > 1:
            dist.barrier()

    def model_state(self, model: nn.Module) -> dict[str, Tensor]:
        """Whole weights on the CPU; empty on all processes but the main one. All must call it."""
        if self.size == 1:
            return model.state_dict()  # A view of the weights: the other call copies them.
        state: dict[str, Any] = get_model_state_dict(model, options=_WHOLE)
        return state

    def load_model_state(self, model: nn.Module, state: dict[str, Tensor]) -> None:
        """Put whole weights into the model. All processes must call it, the main one with the weights."""
        set_model_state_dict(model, dict[str, Any](state), options=self._loading)

    def optimiser_state(self, model: nn.Module, optimiser: Optimizer) -> dict[str, Any]:
        """The whole state of an optimiser by parameter name, so that another number of processes can resume from it."""
        return dict(get_optimizer_state_dict(model, optimiser, options=_WHOLE))

    def load_optimiser_state(self, model: nn.Module, optimiser: Optimizer, state: dict[str, Any]) -> None:
        """Put a whole state into the optimiser. All processes must call it, the main one with the state."""
        set_optimizer_state_dict(model, optimiser, state, options=self._loading)

    @property
    def _loading(self) -> StateDictOptions:
        return StateDictOptions(full_state_dict=True, broadcast_from_rank0=self.size > 1)


def num_processes() -> int:
    """The number of processes that torchrun started, or one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined_world(*, is_compiled: bool = False) -> Iterator[World]:
    """Join the processes that torchrun describes in the environment, or a world of one; leave them at the end."""
    has_gpu = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = f"cuda:{local}" if has_gpu else "cpu"
    size = num_processes()
    if has_gpu:
        torch.cuda.set_device(local)
    if size == 1:
        yield World(device=device, is_compiled=is_compiled)
        return
    dist.init_process_group("nccl" if has_gpu else "gloo")
    try:
        yield World(dist.get_rank(), size, device, is_compiled)
    finally:
        dist.destroy_process_group()


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
    fitting = [gpu for gpu in GPUS if words.issuperset(gpu.split("-"))]
    return GPUS[max(fitting, key=lambda gpu: gpu.count("-"))].peak_flops if fitting else None


def measured_flops(device: str, size: int) -> float:
    """Operations a second in the best of a few bfloat16 products of square matrices, `size` rows each."""
    square = torch.ones(size, size, dtype=torch.bfloat16, device=device)
    best_s = float("inf")
    for _ in range(PROBE_RUNS):
        begun = time.perf_counter()
        float((square @ square)[0, 0])
        best_s = min(best_s, time.perf_counter() - begun)
    return 2.0 * size**3 / best_s
