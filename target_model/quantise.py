"""Makes an INT8 copy of a model folder without data, by the W8A8 scheme.

Weights are int8 with a scale per output channel, activations int8 with a scale per token. A weight's scale comes from
the weight, an activation's is computed at run time.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from target_model.core import TargetError, new_folder

INT8_MAX = 127
MATRIX_DIMS = 2
LINEAR_SUFFIXES = (
    "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
    "gate_proj.weight", "up_proj.weight", "down_proj.weight",
)  # fmt: skip
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
KEPT_SUFFIXES = ("embed_tokens.weight", HEAD)
INDEX = "model.safetensors.index.json"
COPIED_SUFFIXES = (".json", ".txt", ".model", ".jinja")
CARD = "README.md"
CARD_NOTE = "This folder is the INT8 copy; the figures above were measured before the rounding.\n"


def is_quantised(name: str, tensor: Tensor, *, with_head: bool = False) -> bool:
    """Whether a tensor is a matrix to round: a linear layer's, and with `with_head` that of the output head."""
    return tensor.ndim == MATRIX_DIMS and (name.endswith(LINEAR_SUFFIXES) or (with_head and name == HEAD))


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


def quantization_config(*, with_head: bool = False) -> dict[str, Any]:
    """The part of `config.json` by which compressed-tensors recognises the scheme (its format `int-quantized`)."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    targets = ["Linear", "re:.*lm_head$"] if with_head else ["Linear"]
    group = {"targets": targets, "weights": weights, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [] if with_head else ["lm_head"],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


@dataclass(frozen=True)
class Report:
    """The result of a quantisation: counts, sizes on disk, the largest relative error of a matrix (Frobenius norms).

    The error is None if matrices were changed before they were rounded.
    """

    num_quantised: int
    num_kept: int
    bytes_before: int
    bytes_after: int
    worst_relative_error: float | None


def read_config(model: Path) -> dict[str, Any]:
    """The model's `config.json`; TargetError when it is missing, not JSON, or says the model is quantised already."""
    path = model / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TargetError(f"{model} is not a model folder: it has no config.json") from None
    except json.JSONDecodeError as error:
        raise TargetError(f"{path} is not JSON: {error}") from error
    if "quantization_config" in config:
        raise TargetError(f"{model} is quantised already")
    return config


def weight_files(model: Path) -> list[Path]:
    """The safetensors files of a model folder, sorted; TargetError when there are none.

    They are those of the index if there is one: some folders hold copies of the weights that the index leaves out.
    """
    index = model / INDEX
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else ()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetError(f"{index} is no index of weights: {error!r}") from error
    files = sorted({model / str(name) for name in named}) or sorted(model.glob("*.safetensors"))
    missing = next((file for file in files if not file.is_file()), None)
    if missing or not files:
        text = f"{index} names {missing.name}, which is not there" if missing else f"{model} has no safetensors files"
        raise TargetError(text)
    return files


def quantise_folder(model: Path, out: Path, *, with_head: bool = False) -> Report:
    """Write `model` with its linear layers in INT8 to the new folder `out`, tokenizer and card copied.

    `with_head` rounds the output head, too, which is a third of what a step of a small model reads; a head that is the
    embedding becomes a matrix of its own. Memory holds one weights file at a time. Raises TargetError for a folder that
    is no model, a linear layer of a name that the scheme does not know, an `out` that exists, or a disk that refuses.
    """
    config = read_config(model)
    files = weight_files(model)
    refuse_unknown_matrices(files)
    num_quantised, num_kept, worst = 0, 0, 0.0
    with new_folder(out) as folder:
        placed: dict[str, str] = {}
        for file in files:
            converted: dict[str, Tensor] = {}
            for name, tensor in tensors_of(file):
                if is_quantised(name, tensor, with_head=with_head):
                    error = _convert(name, tensor, converted)
                    worst, num_quantised = max(worst, error), num_quantised + 1
                else:
                    converted[name], num_kept = tensor, num_kept + 1
                if with_head and name == EMBEDDING and config.get("tie_word_embeddings"):
                    worst, num_quantised = max(worst, _convert(HEAD, tensor, converted)), num_quantised + 1
            _save(converted, folder / file.name)
            placed |= dict.fromkeys(converted, file.name)
        if num_quantised == 0:
            raise TargetError(f"{model} has no linear layers that this scheme knows")
        write_side_files(model, folder, config, with_head=with_head)
        if len(files) > 1:
            _write_index(folder, placed)
        size_after = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    size_before = sum(file.stat().st_size for file in files)
    return Report(num_quantised, num_kept, size_before, size_after, worst)


def refuse_unknown_matrices(files: Sequence[Path]) -> None:
    """Raise TargetError for a linear layer that the scheme does not know: the configuration would call it INT8."""
    for file in files:
        names = [name for name in _names(file) if name.endswith(".weight")]
        unknown = [name for name in names if not name.endswith((*LINEAR_SUFFIXES, *KEPT_SUFFIXES))]
        with safe_open(file, framework="pt") as tensors:
            for name in unknown:
                if len(tensors.get_slice(name).get_shape()) == MATRIX_DIMS:
                    known = ", ".join(LINEAR_SUFFIXES)
                    raise TargetError(f"{name}: this scheme knows no such matrix; known are {known}")


def _convert(name: str, tensor: Tensor, into: dict[str, Tensor]) -> float:
    """Put the int8 matrix and its scales into `into`; return the relative error."""
    try:
        quantised, scale = quantise_weight(tensor)
    except ValueError as error:
        raise TargetError(f"{name}: {error}") from error
    into[name], into[f"{name}_scale"] = quantised, scale
    values = tensor.to(torch.float32)
    difference = dequantise_weight(quantised, scale) - values
    return float(difference.norm() / values.norm().clamp(min=1e-12))


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as tensors:
            return list(tensors.keys())
    except SafetensorError as error:
        raise TargetError(f"{file} is not a safetensors file: {error}") from error


def tensors_of(file: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors file, one in memory at a time; TargetError when it is none."""
    for name in _names(file):
        with safe_open(file, framework="pt") as tensors:
            yield name, tensors.get_tensor(name)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors writes files that only the owner can read.
    except SafetensorError as error:
        raise TargetError(f"cannot write {path.name}: {error}; nothing was left there") from error


def is_weight(path: Path) -> bool:
    """Whether a file of a model folder holds weights or is their index."""
    return path.suffix == ".safetensors" or path.name == INDEX


def write_side_files(model: Path, folder: Path, config: dict[str, Any], *, with_head: bool = False) -> None:
    """Copy tokenizer and generation files and the card, and write the configuration of an INT8 model."""
    for path in sorted(model.iterdir()):
        if path.suffix in COPIED_SUFFIXES and path.name != "config.json" and not is_weight(path):
            shutil.copyfile(path, folder / path.name)
    if (model / CARD).exists():
        card = (model / CARD).read_text(encoding="utf-8").rstrip("\n")
        (folder / CARD).write_text(f"{card}\n\n{CARD_NOTE}", encoding="utf-8")
    full = {**config, "quantization_config": quantization_config(with_head=with_head)}
    if with_head:
        full["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(full, indent=2) + "\n", encoding="utf-8")


def _write_index(folder: Path, placed: dict[str, str]) -> None:
    """Write the index of a model in several files: the file of each tensor."""
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    index = {"metadata": {"total_size": size}, "weight_map": placed}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
