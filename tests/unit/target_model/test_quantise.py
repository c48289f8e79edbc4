"""INT8 copies without calibration."""

import errno
import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from target_model.__main__ import main
from target_model.core import TargetError
from target_model.quantise import (
    CARD_NOTE,
    dequantise_weight,
    quantise_folder,
    quantise_weight,
    quantization_config,
)

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
rows = st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=6, max_size=6), min_size=1, max_size=5)


@given(rows)
def test_no_weight_is_off_by_more_than_half_a_step_and_the_scheme_is_symmetric(values: list[list[float]]) -> None:
    weight = torch.tensor([*values, [0.0] * 6, [-4.0, 4.0, 0.0, 0.0, 0.0, 0.0]])
    quantised, scale = quantise_weight(weight)
    error = (dequantise_weight(quantised, scale) - weight).abs()
    assert (quantised.dtype, scale.shape) == (torch.int8, (len(weight), 1))
    assert bool((error <= scale * 0.5001 + 1e-30).all())
    assert quantised[-2:, :2].tolist() == [[0, 0], [-127, 127]]


def test_the_copy_holds_int8_matrices_and_keeps_the_rest(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (model / "README.md").write_text("# A model\n")
    report = quantise_folder(model, out)
    before, after = load_file(model / WEIGHTS), load_file(out / WEIGHTS)
    assert (after[Q_PROJ].dtype, after[f"{Q_PROJ}_scale"].shape) == (torch.int8, (8, 1))
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        assert torch.equal(after[name], before[name])
    assert (report.num_quantised, report.num_kept) == (2, 3)
    assert 0 < (report.worst_relative_error or 0) < 0.01
    assert (out / WEIGHTS).stat().st_mode & 0o777 == 0o644, "for other users too"
    assert (out / "README.md").read_text() == f"# A model\n\n{CARD_NOTE}"
    assert (out / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_output_head_is_rounded_on_demand_also_if_it_is_the_embedding(
    model: Path, tmp_path: Path, is_tied: bool
) -> None:
    tensors = load_file(model / WEIGHTS)
    head = tensors["model.embed_tokens.weight"] if is_tied else tensors["lm_head.weight"]
    if is_tied:
        del tensors["lm_head.weight"]
        save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    (model / "config.json").write_text(json.dumps({"tie_word_embeddings": is_tied}))
    assert quantise_folder(model, tmp_path / "out", with_head=True).num_quantised == 3
    after, config = load_file(tmp_path / "out" / WEIGHTS), json.loads((tmp_path / "out" / "config.json").read_text())
    rounded = dequantise_weight(after["lm_head.weight"], after["lm_head.weight_scale"])
    assert torch.allclose(rounded, head.float(), atol=float(head.abs().max()) / 127)
    assert after["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert (config["tie_word_embeddings"], config["quantization_config"]["ignore"]) == (False, [])


def test_the_configuration_is_what_compressed_tensors_expects(model: Path, tmp_path: Path) -> None:
    quantise_folder(model, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLM"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Importing it uses deprecated parts of torch.
        compressed_tensors = importlib.import_module("compressed_tensors.quantization")
        parsed = compressed_tensors.QuantizationConfig.model_validate(written["quantization_config"])
    (scheme,) = parsed.config_groups.values()
    assert (scheme.weights.num_bits, scheme.weights.strategy) == (8, "channel")
    assert (scheme.weights.symmetric, scheme.weights.dynamic) == (True, False)
    assert (scheme.input_activations.strategy, scheme.input_activations.dynamic) == ("token", True)
    assert (parsed.ignore, parsed.format) == (["lm_head"], "int-quantized")


def test_a_model_in_several_files_gets_a_new_index(model: Path, tmp_path: Path) -> None:
    tensors = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    placed = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(placed.values()):
        save_file({name: tensors[name] for name, at in placed.items() if at == file}, model / file)
    save_file({"the same once more": torch.ones(2)}, model / "consolidated.safetensors")
    for content, message in (("{}", "no index of weights"), ('{"weight_map": {"a": "b"}}', "names b, which is not")):
        (model / INDEX).write_text(content)
        with pytest.raises(TargetError, match=message):
            quantise_folder(model, tmp_path / "out")
    (model / INDEX).write_text(json.dumps({"weight_map": placed}))
    quantise_folder(model, tmp_path / "out")
    index: dict[str, Any] = json.loads((tmp_path / "out" / INDEX).read_text())["weight_map"]
    assert all(name in load_file(tmp_path / "out" / file) for name, file in index.items())
    assert f"{Q_PROJ}_scale" in index
    assert not (tmp_path / "out" / "consolidated.safetensors").exists()


def test_a_full_disk_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("target_model.quantise.save_file", full_disk)
    with pytest.raises(TargetError, match="No space left"):
        quantise_folder(model, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_bad_input_is_a_clear_error_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    def refused(match: str, folder: Path = model) -> None:
        with pytest.raises(TargetError, match=match):
            quantise_folder(folder, tmp_path / "out")
        assert not (tmp_path / "out").exists()

    tensors = load_file(model / WEIGHTS)
    save_file(tensors | {"model.layers.0.mlp.router.weight": torch.ones(2, 2)}, model / WEIGHTS)
    refused(r"layers.0.mlp.router.weight: this scheme knows no such matrix")
    save_file(tensors | {Q_PROJ: tensors[Q_PROJ] * float("nan")}, model / WEIGHTS)
    refused(r"q_proj\.weight: a weight is not finite")
    (model / WEIGHTS).write_bytes(b"nonsense")
    refused("not a safetensors file")
    (model / "config.json").write_text(json.dumps({"quantization_config": quantization_config()}))
    refused("quantised already")
    (model / "config.json").write_text("{")
    refused("not JSON")
    refused("not a model folder", tmp_path / "missing")


def test_the_command_reports_and_explains(model: Path, tmp_path: Path) -> None:
    def run(name: str, *more: str) -> Any:
        return CliRunner().invoke(main, ["quantize", "--model", str(model), "--out", str(tmp_path / name), *more])

    assert "2 matrices in int8" in run("out").stdout
    again = run("out")
    assert (again.exit_code, "exists already" in again.output) == (1, True)
    assert "--smoothing has no effect without --calibration" in run("out2", "--smoothing", "0.5").output
    assert "target-model quantize" in run("out2", "--help").output
    assert not (tmp_path / "out2").exists()
