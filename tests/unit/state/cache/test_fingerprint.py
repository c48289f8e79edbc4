"""The fingerprint of a model: by content, wherever the files are."""

import json
import random
import shutil
from pathlib import Path

import pytest

from completion_server.state.cache.fingerprint import model_fingerprint

TENSOR_BYTES = 3_000_000


def write_model(folder: Path, seed: int = 1) -> Path:
    """Write a model with three tensors."""
    folder.mkdir(parents=True)
    spans = [(at * TENSOR_BYTES, (at + 1) * TENSOR_BYTES) for at in range(3)]
    tensors = {f"layer.{at}": {"dtype": "U8", "shape": [TENSOR_BYTES], "data_offsets": spans[at]} for at in range(3)}
    header = json.dumps({"__metadata__": {"format": "pt"}} | tensors).encode()
    content = random.Random(seed).randbytes(3 * TENSOR_BYTES)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "README.md").write_text("a model")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def test_a_copy_has_the_same_fingerprint(model: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(model, tmp_path / "elsewhere" / "other-name")
    (copied / "README.md").write_text("a copy of a model")
    assert model_fingerprint(str(copied)) == model_fingerprint(str(model))


@pytest.mark.parametrize("tensor", [0, 1, 2])
def test_a_changed_tensor_is_noticed(model: Path, tensor: int) -> None:
    before = model_fingerprint(str(model))
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    begin = len(content) - (3 - tensor) * TENSOR_BYTES
    content[begin : begin + TENSOR_BYTES] = bytes(each ^ 1 for each in content[begin : begin + TENSOR_BYTES])
    weights.write_bytes(content)
    assert model_fingerprint(str(model)) != before


def test_other_files_sizes_and_names_are_noticed(model: Path) -> None:
    found = {model_fingerprint(str(model))}
    (model / "config.json").write_text('{"model_type": "qwen"}')
    found.add(model_fingerprint(str(model)))
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"0")
    found.add(model_fingerprint(str(model)))
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    found.add(model_fingerprint(str(model)))
    (model / "tokenizer.json").write_text("{}")
    found.add(model_fingerprint(str(model)))
    assert len(found) == 5


@pytest.mark.parametrize("content", [b"", b"12345678", b"\xff" * 9000, (4).to_bytes(8, "little") + b"[1]x" + b"y" * 99])
def test_weights_of_any_format_have_a_fingerprint(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    first = model_fingerprint(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(content + b"z")
    assert len({first, model_fingerprint(str(tmp_path))}) == 2


def test_a_hub_id_resolves_to_its_snapshot_or_its_name(model: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    assert model_fingerprint("org/name", None, str(hub)) == "org/name@main"
    assert model_fingerprint("org/name", "v1", str(hub)) == "org/name@v1"
    repo = hub / "models--org--name"
    commit = "a" * 40
    shutil.copytree(model, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    assert model_fingerprint("org/name", None, str(hub)) == model_fingerprint(str(model))
    assert model_fingerprint("org/name", commit, str(hub)) == model_fingerprint(str(model))


def test_a_model_without_files_is_named(tmp_path: Path) -> None:
    assert model_fingerprint(str(tmp_path / "missing")) == f"{tmp_path / 'missing'}@main"
    assert model_fingerprint("scripted") == "scripted@main"
