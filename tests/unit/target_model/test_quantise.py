"""Quantisation of the target, with and without calibration, and its memory."""

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from target_model.__main__ import main
from target_model.core import QuantiseError, new_folder
from target_model.quantisation.calibrate import MAX_CHARACTERS, Calibration, quantise_calibrated, sample
from target_model.quantisation.quantise import (
    CARD_NOTE,
    dequantise_weight,
    quantise_folder,
    quantise_weight,
    quantization_config,
)

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
rows = st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=6, max_size=6), min_size=1, max_size=5)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "model.embed_tokens.weight": torch.randn(12, 8, generator=generator).to(torch.bfloat16),
        "model.norm.weight": torch.ones(8, dtype=torch.bfloat16),
        "lm_head.weight": torch.randn(12, 8, generator=generator).to(torch.bfloat16),
        Q_PROJ: torch.randn(8, 8, generator=generator).to(torch.bfloat16),
        "model.layers.0.mlp.down_proj.weight": torch.randn(8, 16, generator=generator).to(torch.bfloat16),
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@given(rows)
def test_no_weight_is_off_by_more_than_half_a_step(values: list[list[float]]) -> None:
    weight = torch.tensor(values)
    quantised, scale = quantise_weight(weight)
    error = (dequantise_weight(quantised, scale) - weight).abs()
    assert quantised.dtype == torch.int8
    assert scale.shape == (len(values), 1)
    assert bool((error <= scale * 0.5001 + 1e-30).all())


def test_a_row_of_zeros_stays_zero_and_the_scheme_is_symmetric() -> None:
    quantised, scale = quantise_weight(torch.tensor([[0.0, 0.0], [-4.0, 4.0]]))
    assert quantised.tolist() == [[0, 0], [-127, 127]]
    assert scale[0].item() == 1.0


def test_a_weight_that_is_not_finite_is_refused(model: Path, tmp_path: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors[Q_PROJ][0, 0] = float("nan")
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(QuantiseError, match=r"q_proj\.weight: a weight is not finite"):
        quantise_folder(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_copy_holds_int8_matrices_and_keeps_the_rest(model: Path, tmp_path: Path) -> None:
    report = quantise_folder(model, tmp_path / "out")
    before, after = load_file(model / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert after[Q_PROJ].dtype == torch.int8
    assert after[f"{Q_PROJ}_scale"].shape == (8, 1)
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        assert torch.equal(after[name], before[name])
    assert (report.num_quantised, report.num_kept) == (2, 3)
    assert report.worst_relative_error < 0.01
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_other_users_may_read_the_copy(model: Path, tmp_path: Path) -> None:
    quantise_folder(model, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_the_copy_has_the_card_and_a_model_needs_none(model: Path, tmp_path: Path) -> None:
    quantise_folder(model, tmp_path / "without")
    assert not (tmp_path / "without" / "README.md").exists()
    (model / "README.md").write_text("# A model\n")
    quantise_folder(model, tmp_path / "with")
    assert (tmp_path / "with" / "README.md").read_text() == f"# A model\n\n{CARD_NOTE}"


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
    assert parsed.ignore == ["lm_head"]
    assert parsed.format == "int-quantized"


def test_a_model_in_several_files_gets_a_new_index(model: Path, tmp_path: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(tensors)
    placed: dict[str, str] = {}
    for number, part in enumerate((names[:2], names[2:])):
        save_file({name: tensors[name] for name in part}, model / f"model-{number}.safetensors")
        placed |= dict.fromkeys(part, f"model-{number}.safetensors")
    save_file({"the same once more": tensors[names[0]]}, model / "consolidated.safetensors")
    index_file = model / "model.safetensors.index.json"
    for content, message in (("{}", "no index of weights"), ('{"weight_map": {"a": "b"}}', "names b, which is not")):
        index_file.write_text(content)
        with pytest.raises(QuantiseError, match=message):
            quantise_folder(model, tmp_path / "out")
    index_file.write_text(json.dumps({"weight_map": placed}))
    quantise_folder(model, tmp_path / "out")
    assert not (tmp_path / "out" / "consolidated.safetensors").exists()
    index: dict[str, Any] = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "out" / file)
    assert f"{Q_PROJ}_scale" in index["weight_map"]


def test_a_linear_layer_of_another_name_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.0.mlp.router.weight"] = torch.ones(2, 2)
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(QuantiseError, match=r"layers.0.mlp.router.weight: this scheme knows no such matrix"):
        quantise_folder(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("target_model.quantisation.quantise.save_file", full_disk)
    with pytest.raises(QuantiseError, match="No space left"):
        quantise_folder(model, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_remains_of_a_killed_process_are_removed(model: Path, tmp_path: Path) -> None:
    with new_folder(tmp_path / "out") as folder:
        left = folder.with_name(folder.name.replace(".tmp", "killed.tmp"))
    (tmp_path / "out").rmdir()
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    os.utime(left, (0, 0))
    quantise_folder(model, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_bad_input_is_a_clear_error(model: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantiseError, match="not a model folder"):
        quantise_folder(tmp_path / "missing", tmp_path / "out")
    with pytest.raises(QuantiseError, match="exists already"):
        quantise_folder(model, model)
    (model / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(QuantiseError, match="not a safetensors file"):
        quantise_folder(model, tmp_path / "out")
    (model / "config.json").write_text(json.dumps({"quantization_config": quantization_config()}))
    with pytest.raises(QuantiseError, match="quantised already"):
        quantise_folder(model, tmp_path / "out")
    (model / "config.json").write_text("{")
    with pytest.raises(QuantiseError, match="not JSON"):
        quantise_folder(model, tmp_path / "out")


def test_calibration_settings_without_data_are_refused(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(main, ["quantize", "--model", str(model), "--out", str(out), "--smoothing", "0.5"])
    assert result.exit_code == 2
    assert "--smoothing has no effect without --calibration" in result.output
    assert not out.exists()


def test_the_command_reports_and_explains(model: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    result = CliRunner().invoke(main, ["quantize", "--model", str(model), "--out", out, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["num_quantised"] == 2
    again = CliRunner().invoke(main, ["quantize", "--model", str(model), "--out", out])
    assert again.exit_code == 1
    assert "exists already" in again.output
    text = CliRunner().invoke(main, ["quantize", "--model", str(model), "--out", out + "2"])
    assert "2 matrices in int8" in text.stdout
    assert "target-model quantize" in CliRunner().invoke(main, ["quantize", "--help"]).output


PASSES = 'tell(done=1, total=2); tell(warning="odd"); tell(warning="odd"); write(); tell(done=2, total=2)'


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    tensors = {
        "model.embed_tokens.weight": torch.randn(12, 8).to(torch.bfloat16),
        "model.norm.weight": torch.ones(8, dtype=torch.bfloat16),
        Q_PROJ: torch.randn(8, 8).to(torch.bfloat16),
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def interpreter(folder: Path, does: str, *, dtype: str = "int8", scale: str = "1.0") -> Path:
    """Return an interpreter that runs `does` for any program; it records its arguments and its job."""
    path = folder / "python"
    path.write_text(f"""#!{sys.executable}
import json, os, pathlib, signal, sys
import numpy as np
from safetensors.numpy import save_file
here, job = pathlib.Path(__file__).parent, json.loads(pathlib.Path(sys.argv[3]).read_text())
(here / "called.json").write_text(json.dumps([sys.argv[1:], job]))
def tell(**event): print(json.dumps(event), flush=True)
def write():
    tensors = {{"{Q_PROJ}": np.zeros((8, 8), dtype="{dtype}"),
        "{Q_PROJ}_scale": np.full((8, 1), {scale}, dtype="float32"),
        "model.norm.weight": np.full((8,), 0.5, dtype="float32")}}
    save_file(tensors, job["out"] + "/model.safetensors")
    pathlib.Path(job["out"], "config.json").write_text("of another version")
{does}
""")
    path.chmod(0o755)
    return path


def test_the_copy_has_the_format_of_the_one_made_without_data(small: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    how = Calibration(["x = 1\n", "y = 2\n"], 2, 0.5, interpreter(tmp_path, PASSES))
    report, warnings = quantise_calibrated(small, tmp_path / "out", how, lambda *at: seen.append(at))
    quantise_folder(small, tmp_path / "plain")
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert (tmp_path / "out" / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
    assert (report.num_quantised, report.num_kept, report.worst_relative_error) == (1, 1, None)
    assert warnings == ["odd"]
    assert seen == [(1, 2), (2, 2)]


def test_a_signal_leaves_nothing_behind(small: Path, tmp_path: Path) -> None:
    """As a service manager ends it; the other environment's process ends with it."""
    python = interpreter(tmp_path, "(here / 'pid').write_text(str(os.getpid())); signal.pause()")
    (tmp_path / "texts.jsonl").write_text('{"text": "x = 1"}\n')
    command = [sys.executable, "-m", "target_model", "quantize", "--model", str(small), "--out", str(tmp_path / "out")]
    command += ["--calibration", str(tmp_path / "texts.jsonl"), "--calibration-python", str(python)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_other_environment_gets_the_settings(small: Path, tmp_path: Path) -> None:
    how = Calibration(["x = 1\n"], 8, 0.25, interpreter(tmp_path, PASSES))
    quantise_calibrated(small, tmp_path / "out", how)
    arguments, job = json.loads((tmp_path / "called.json").read_text())
    assert arguments[0] == "-I"
    assert arguments[1].endswith("target_model/quantisation/llmcompressor_job.py")
    assert job["model"] == str(small)
    assert job["texts"] == ["x = 1\n"]
    assert job["smoothing"] == 0.25
    assert job["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    ("does", "message"),
    [
        ('tell(error="no such architecture"); sys.exit(1)', "^no such architecture$"),
        ('sys.exit("out of ideas")', r"calibration failed: out of ideas"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed; it may have needed more memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", r"signal 11"),
        ("print('chatter')", "'chatter' instead of an event"),
        ("pass", "no safetensors files"),
    ],
)
def test_a_failure_there_is_reported_and_leaves_nothing(does: str, message: str, small: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path, does)
    with pytest.raises(QuantiseError, match=message):
        quantise_calibrated(small, tmp_path / "out", Calibration(["x = 1\n"], python=python))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["called.json", "model", "python"]


def test_the_returned_model_is_checked(small: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path, "write()", dtype="float32")
    with pytest.raises(QuantiseError, match="other layers than asked for"):
        quantise_calibrated(small, tmp_path / "out", Calibration(["x"], python=python))
    python = interpreter(tmp_path, "write()", scale="float('nan')")
    with pytest.raises(QuantiseError, match=r"q_proj\.weight_scale with values that are not finite"):
        quantise_calibrated(small, tmp_path / "out", Calibration(["x"], python=python))
    assert not (tmp_path / "out").exists()


def test_an_interruption_ends_the_other_process_and_leaves_nothing(small: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    python = interpreter(tmp_path, "tell(done=1, total=2); signal.pause()")
    with pytest.raises(KeyboardInterrupt):
        quantise_calibrated(small, tmp_path / "out", Calibration(["x"], python=python), interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["called.json", "model", "python"]


def test_a_missing_environment_names_the_make_target(small: Path, tmp_path: Path) -> None:
    with pytest.raises(QuantiseError, match="run `make calibration`"):
        quantise_calibrated(small, tmp_path / "out", Calibration(["x"], python=tmp_path / "none"))
    no_program = tmp_path / "text"
    no_program.write_text("x")
    with pytest.raises(QuantiseError, match="cannot start"):
        quantise_calibrated(small, tmp_path / "out", Calibration(["x"], python=no_program))
    assert not (tmp_path / "out").exists()


def test_a_model_of_unknown_layers_is_refused_before_anything_starts(small: Path, tmp_path: Path) -> None:
    save_file({"h.0.attn.c_attn.weight": torch.ones(4, 4)}, small / "model.safetensors")
    with pytest.raises(QuantiseError, match=r"c_attn.weight: this scheme knows no such matrix"):
        quantise_calibrated(small, tmp_path / "out", Calibration(["x"], python=interpreter(tmp_path, "pass")))
    assert not (tmp_path / "called.json").exists()


def test_a_sample_is_spread_over_all_texts_and_always_the_same() -> None:
    texts = [f"{number}" * (MAX_CHARACTERS + 100) for number in range(10)] + ["", " \n"]
    chosen = sample(texts, 5)
    assert [text[0] for text in chosen] == ["0", "2", "4", "6", "8"]
    assert {len(text) for text in chosen} == {MAX_CHARACTERS}
    assert chosen == sample(texts, 5)
    assert len(sample(texts, 100)) == 10
    with pytest.raises(QuantiseError, match="not blank"):
        sample(["", " "], 5)


def test_the_command_calibrates_and_explains(small: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "x = 1"}\n')
    python = interpreter(tmp_path, PASSES)
    command = ["quantize", "--model", str(small), "--calibration", str(data), "--calibration-python", str(python)]
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out"), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["worst_relative_error"]) == (0, None)
    assert "Warning: odd" in result.stderr
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out2")])
    assert "1 matrices in int8" in result.stdout
    data.write_text("")
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out3")])
    assert result.exit_code == 1
    assert "has no texts" in result.output
