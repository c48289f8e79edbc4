"""Prepares a model for this machine: fetches it, converts a GGUF file, and rounds it to INT8 where that is faster.

What it makes is kept in the user's cache folder, under the model's name and a digest of what it was made from.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from completion_server.engine.vllm.offline import linear_seconds
from target_model.core import TargetError, new_folder, telling
from target_model.quantise import quantise_folder, weight_files

GIB = 1 << 30
_SERVER_BYTES = 3 * GIB
"""Memory of a server besides the weights: two processes with torch, and a KV cache of a GiB."""
_LOAD_SHARE = 1.2
"""Memory of the weights while they are loaded, over their size."""
_LEAST_GAIN = 1.1
"""INT8 that is hardly faster is not worth its rounding."""
_STEPS = ((64, 1), (1, 12))
"""Tokens and number of the steps of a completion: the part of a prompt that a key changes, then token by token."""
_GGUF_BYTES = 16 / 4.5
"""Size of a model in bfloat16 over that of its GGUF file, which has 4 to 5 bits a weight in the usual kinds."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model folder that is ready to be served."""

    folder: Path
    about: str
    """One line about how it was made."""


def prepare(model: str, cache: Path, say: Say) -> Prepared:
    """Return a folder of a model that this machine serves best. `say` is told of each step that takes time.

    `model` is a folder, a GGUF file, or an id on the hub. Raises TargetError if it is none, can't be fetched, or the
    memory or the disk is too small.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        folder = path.resolve()
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise TargetError(f"{model} is no model's folder: it must have config.json and safetensors files")
        _require_memory(_size(folder.glob("*.safetensors")), say)
    elif path.suffix == ".gguf" and path.is_file():
        _require_memory(int(path.stat().st_size * _GGUF_BYTES), say)
        folder = _converted(path.resolve(), cache, say)
    elif model.count("/") == 1 and not model.startswith((".", "/", "~")) and path.suffix != ".gguf":
        folder = _fetched(model, say)
    else:
        raise TargetError(f"{model} is no folder, no GGUF file and no hub id such as org/name")
    return _rounded(folder, cache, say)


def _rounded(folder: Path, cache: Path, say: Say) -> Prepared:
    """Return the model's INT8 copy if this machine is faster with it, else the model."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        return Prepared(folder, "it is quantised already")
    shape = _shape_of(config)
    if shape is None:
        return Prepared(folder, "its layers are of a kind that is served as it is")
    out = cache / f"{_name(folder)}-int8-{_digest(weight_files(folder))}"
    if out.is_dir():
        return Prepared(out, "its INT8 copy was made before")
    with telling(lambda: "measuring whether this processor is faster in INT8"):
        times = _times(shape)
    if times is None:
        return Prepared(folder, "in bfloat16; target-model quantize makes an INT8 copy for a GPU")
    with_head = times.layers_s >= _LEAST_GAIN * times.all_s
    gain = times.plain_s / (times.all_s if with_head else times.layers_s)
    measured = f"the matrices of a completion are {gain:.1f} times as fast in INT8 here"
    if gain < _LEAST_GAIN:
        return Prepared(folder, f"in bfloat16: {measured}")
    measured += ", the output head's with them" if with_head else ""
    say(f"{measured}; making an INT8 copy at {out}")
    _require_disk(_size(weight_files(folder)), out)
    with telling(lambda: "rounding to INT8"):
        quantise_folder(folder, out, with_head=with_head)
    return Prepared(out, f"in INT8: {measured}")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The matrices that a step multiplies, each as (out, in)."""

    layer: list[tuple[int, int]]
    num_layers: int
    head: tuple[int, int]


def _shape_of(config: dict[str, Any]) -> _Shape | None:
    """Return the matrices of a model, None for one of another form."""
    try:
        hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
        num_layers, head = config["num_hidden_layers"], (config["vocab_size"], hidden)
    except KeyError:
        return None
    size = config.get("head_dim") or hidden // heads
    num_values = (heads + 2 * config.get("num_key_value_heads", heads)) * size
    layer = [(num_values, hidden), (hidden, heads * size), (2 * inner, hidden), (hidden, inner)]
    return _Shape(layer, num_layers, head)


class _Times(NamedTuple):
    """Seconds of a completion's matrices in bfloat16, with the layers in INT8, and with the head in INT8, too."""

    plain_s: float
    layers_s: float
    all_s: float


def _times(shape: _Shape) -> _Times | None:
    """Measure on this processor; None on a GPU."""
    plain_s = rounded_s = 0.0
    for num_tokens, num_steps in _STEPS:
        layer = linear_seconds(shape.layer, num_tokens)
        if layer is None:
            return None
        plain_s += num_steps * shape.num_layers * layer[0]
        rounded_s += num_steps * shape.num_layers * layer[1]
    head = linear_seconds([shape.head], 1)  # for the last token of each step
    assert head is not None
    plain_head_s, rounded_head_s = (sum(num for _, num in _STEPS) * each for each in head)
    return _Times(plain_s + plain_head_s, rounded_s + plain_head_s, rounded_s + rounded_head_s)


def _converted(path: Path, cache: Path, say: Say) -> Path:
    """Return the folder that a GGUF file was converted to, now or before."""
    out = cache / f"{path.stem}-{_digest([path])}"
    if out.is_dir():
        return out
    num_bytes = int(path.stat().st_size * _GGUF_BYTES)
    _require_disk(num_bytes, out)
    say(f"converting {path.name} once, to about {_gib(num_bytes)} at {out}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    loaded: Any
    try:  # both show a progress bar of their own
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **source)
        loaded = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.bfloat16, **source)
    except ImportError as error:
        raise TargetError(f"{path.name}: a GGUF file needs the package gguf: {error}") from error
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise TargetError(f"{path.name} can't be converted: {error}") from error
    # The weights are plain ones now.
    loaded.hf_quantizer, loaded.is_quantized, loaded.quantization_method = None, False, None
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    loaded.config.name_or_path = path.stem
    with new_folder(out) as folder:
        loaded.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return out


_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.md"]
"""The files of a hub's model that a server and an INT8 copy need."""


def _fetched(model: str, say: Say) -> Path:
    """Return the folder of a hub's model in the hub's cache, which is downloaded if it is not there."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError  # type: ignore[attr-defined]

    try:
        try:
            return Path(snapshot_download(model, allow_patterns=_PATTERNS, local_files_only=True))
        except LocalEntryNotFoundError:
            say(f"{model} is not in the hub's cache")
        files = HfApi().model_info(model, files_metadata=True, timeout=10).siblings or []
        num_bytes = sum(each.size or 0 for each in files if each.rfilename.endswith(".safetensors"))
        if not num_bytes:
            raise TargetError(f"{model} has no safetensors files on the hub")
        _require_memory(num_bytes, say)
        _require_disk(num_bytes, Path(constants.HF_HUB_CACHE))
        say(f"downloading {model}, {_gib(num_bytes)}, to {constants.HF_HUB_CACHE}")
        return Path(snapshot_download(model, allow_patterns=_PATTERNS))
    # The clients below the hub's have errors of their own.
    except (OSError, ValueError, RuntimeError, HTTPError) as error:
        reason = " ".join(str(error).split())
        raise TargetError(f"{model} is no folder and not in the hub's cache, and can't be fetched: {reason}") from error


def _require_memory(num_bytes: int, say: Say) -> None:
    """Say what memory a model of this size in bfloat16 needs; refuse one that does not fit."""
    needed, available = int(num_bytes * _LOAD_SHARE) + _SERVER_BYTES, psutil.virtual_memory().available
    say(f"{_gib(num_bytes)} of weights; a server needs about {_gib(needed)} of memory, {_gib(available)} are free")
    if needed > available:
        raise TargetError(f"the model needs about {_gib(needed)} of memory, but {_gib(available)} are free")


def _require_disk(num_bytes: int, path: Path) -> None:
    there = next(each for each in (path, *path.parents) if each.exists())
    free = shutil.disk_usage(there).free
    if num_bytes > free:
        raise TargetError(f"{_gib(num_bytes)} are to be written to {path}, but {_gib(free)} of the disk are free")


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def _name(folder: Path) -> str:
    """Return the name of a model; a folder of the hub's cache is models--ORG--NAME/snapshots/COMMIT."""
    owner = folder.parents[1].name if folder.parent.name == "snapshots" else folder.name
    return owner.rpartition("--")[2]


def _digest(files: Iterable[Path]) -> str:
    """Return what tells two versions of files apart: names, sizes and times."""
    stats = [(file.name, (found := file.stat()).st_size, found.st_mtime_ns) for file in files]
    return blake2b(json.dumps(stats).encode(), digest_size=6).hexdigest()
