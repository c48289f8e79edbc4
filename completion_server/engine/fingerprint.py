"""The fingerprint of a model: the same on every host that has the same files, whatever their folder is called.

Small files are read whole. Of the weights are read: the size, the head of each file, which for safetensors lists all
tensors, a piece of every tensor, and pieces spread over the file. So a model that was trained further in a few tensors
has another fingerprint, and a large model is read in less than a second.
"""

import json
import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

_WHOLE_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
)  # fmt: skip
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_PIECE_BYTES = 4096
_NUM_PIECES = 64
_HEAD_BYTES = 1 << 20
_MAX_HEADER_BYTES = 64 << 20
_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header. https://huggingface.co/docs/safetensors"""


def model_fingerprint(model: str, revision: str | None = None, download_dir: str | None = None) -> str:
    """Return the fingerprint of a model folder, or of a hub id's local snapshot; else the hub id and its revision.

    `download_dir` holds the snapshots; None is the hub's own cache. Reads files, so call it in a thread, and after the
    model was loaded, because that downloads it.

    Raises:
        OSError: a file can't be read.

    """
    folder = Path(model) if Path(model).is_dir() else _snapshot(model, revision, download_dir)
    if folder is None:
        return f"{model}@{revision or 'main'}"
    found = blake2b(digest_size=32)
    for path in sorted(folder.iterdir()):
        if path.name in _WHOLE_FILES:
            _add(found, path.name.encode(), path.read_bytes())
        elif path.suffix in _WEIGHTS:
            with path.open("rb") as file:
                _add(found, path.name.encode(), *_pieces(file))
    return found.hexdigest()


def _snapshot(model: str, revision: str | None, download_dir: str | None) -> Path | None:
    """Return the folder of a hub id's files on this host, None if there is none."""
    from huggingface_hub import try_to_load_from_cache  # only a hub id needs it

    if model.count("/") != 1:
        return None
    config = try_to_load_from_cache(model, "config.json", cache_dir=download_dir, revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def _add(found: "blake2b", *fields: bytes) -> None:
    for field in fields:
        found.update(len(field).to_bytes(8, "little"))
        found.update(field)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Yield the size of a file of weights, its head, and pieces of it."""
    size = os.fstat(file.fileno()).st_size
    yield size.to_bytes(8, "little")
    yield _read(file, 0, _HEAD_BYTES)
    for at in _tensor_middles(file, size):
        yield _read(file, at, _PIECE_BYTES)
    last = max(0, size - _PIECE_BYTES)
    for number in range(_NUM_PIECES):
        yield _read(file, last * number // (_NUM_PIECES - 1), _PIECE_BYTES)


def _read(file: BinaryIO, at: int, num_bytes: int) -> bytes:
    file.seek(at)
    return file.read(num_bytes)


def _tensor_middles(file: BinaryIO, size: int) -> list[int]:
    """Return an offset inside each tensor of a safetensors file, none for a file of another format."""
    length = int.from_bytes(_read(file, 0, _LENGTH_BYTES), "little")
    if not 0 < length <= min(_MAX_HEADER_BYTES, size):
        return []
    try:
        header = json.loads(_read(file, _LENGTH_BYTES, length))
        begin = _LENGTH_BYTES + length
        spans = [
            each["data_offsets"] for each in header.values() if isinstance(each, Mapping) and "data_offsets" in each
        ]
        return sorted(begin + max(first, (first + end - _PIECE_BYTES) // 2) for first, end in spans)
    except (ValueError, TypeError, AttributeError):
        return []
