"""Calibrated INT8 copies, with a script in the place of the other environment's interpreter."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from target_model.__main__ import main
from target_model.calibrate import ENVIRONMENT, MAX_CHARACTERS, Calibration, quantise_calibrated, sample
from target_model.core import TargetError
from target_model.quantise import quantise_folder
from tests.support.models import ROOT
from tests.support.redis_servers import wait_until

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
DOWN_PROJ = "model.layers.0.mlp.down_proj.weight"


def interpreter(folder: Path, does: str = "write()", *, dtype: str = "int8", scale: str = "1.0") -> Path:
    """Return an interpreter that runs `does` for any program; it records its arguments and its job."""
    path = folder / "python"
    path.write_text(f"""#!{sys.executable}
import json, os, pathlib, signal, sys
import numpy as np
from safetensors.numpy import save_file
here, job = pathlib.Path(__file__).parent, json.loads(pathlib.Path(sys.argv[3]).read_text())
(here / "called.json").write_text(json.dumps([sys.argv[1:], job]))
def write():
    tensors = {{"{Q_PROJ}": np.zeros((8, 8), dtype="{dtype}"), "{DOWN_PROJ}": np.zeros((8, 16), dtype="{dtype}"),
        "{Q_PROJ}_scale": np.full((8, 1), {scale}, dtype="float32"),
        "model.norm.weight": np.full((8,), 0.5, dtype="float32")}}
    save_file(tensors, job["out"] + "/model.safetensors")
    pathlib.Path(job["out"], "config.json").write_text("of another version")
{does}
""")
    path.chmod(0o755)
    return path


def test_the_environment_is_the_one_that_make_calibration_sets_up() -> None:
    recipe = subprocess.check_output(["make", "-C", ROOT, "-nB", "calibration"], text=True)
    folder = ENVIRONMENT.parents[1].relative_to(ROOT)
    assert f"-m venv --clear {folder}\n" in recipe


def test_the_copy_has_the_format_of_the_one_made_without_data_and_the_settings_are_passed_on(
    model: Path, tmp_path: Path
) -> None:
    data, out = tmp_path / "data.jsonl", tmp_path / "out"
    data.write_text('{"text": "x = 1\\n"}\n{"text": "y = 2\\n"}\n')
    command = ["quantize", "--model", model, "--out", out, "--json", "--calibration", data, "--samples", "2"]
    command += ["--smoothing", "0.25", "--calibration-python", interpreter(tmp_path)]
    report = json.loads(CliRunner().invoke(main, list(map(str, command))).stdout)
    quantise_folder(model, tmp_path / "plain")
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (out / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
    assert (report["num_quantised"], report["num_kept"], report["worst_relative_error"]) == (2, 1, None)
    arguments, job = json.loads((tmp_path / "called.json").read_text())
    assert arguments[0] == "-I"
    assert arguments[1].endswith("target_model/llmcompressor_job.py")
    assert (job["model"], job["texts"], job["smoothing"]) == (str(model), ["x = 1\n", "y = 2\n"], 0.25)
    assert job["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.full
def test_a_signal_ends_the_other_process_and_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path, "(here / 'pid').write_text(str(os.getpid())); signal.pause()")
    (tmp_path / "texts.jsonl").write_text('{"text": "x = 1"}\n')
    command = [sys.executable, "-m", "target_model", "quantize", "--model", str(model), "--out", str(tmp_path / "out")]
    command += ["--calibration", str(tmp_path / "texts.jsonl"), "--calibration-python", str(python)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        pid = tmp_path / "pid"
        try:
            wait_until(lambda: process.poll() is not None or (pid.is_file() and bool(pid.read_text())), 60)
            assert process.stderr.readline().startswith("calibrating"), "it is not silent"
            process.terminate()
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"does": 'sys.exit("out of ideas")'}, "failed with status 1; its own words are above"),
        ({"does": "os.kill(os.getpid(), signal.SIGKILL)"}, "killed; it may have needed more memory"),
        ({"does": "pass"}, "no safetensors files"),
        ({"dtype": "float32"}, "other layers than asked for"),
        ({"scale": "float('nan')"}, r"q_proj\.weight_scale with values that are not finite"),
    ],
)
def test_a_failure_there_is_reported_and_leaves_nothing(
    how: dict[str, str], message: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TargetError, match=message):
        quantise_calibrated(model, tmp_path / "out", Calibration(["x"], python=interpreter(tmp_path, **how)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["called.json", "model", "python"]
    assert ("out of ideas" in capfd.readouterr().err) is ("ideas" in how.get("does", ""))


def test_what_can_not_be_calibrated_is_refused_before_anything_starts(model: Path, tmp_path: Path) -> None:
    no_program = tmp_path / "text"
    no_program.write_text("x")
    for python, match in ((tmp_path / "none", "run `make calibration`"), (no_program, "cannot start")):
        with pytest.raises(TargetError, match=match):
            quantise_calibrated(model, tmp_path / "out", Calibration(["x"], python=python))
    save_file({"h.0.attn.c_attn.weight": torch.ones(4, 4)}, model / "model.safetensors")
    with pytest.raises(TargetError, match=r"c_attn.weight: this scheme knows no such matrix"):
        quantise_calibrated(model, tmp_path / "out", Calibration(["x"], python=interpreter(tmp_path)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "python", "text"]


def test_a_sample_is_spread_over_all_texts_and_always_the_same() -> None:
    texts = [f"{number}" * (MAX_CHARACTERS + 100) for number in range(10)] + ["", " \n"]
    chosen = sample(texts, 5)
    assert [text[0] for text in chosen] == ["0", "2", "4", "6", "8"]
    assert {len(text) for text in chosen} == {MAX_CHARACTERS}
    assert chosen == sample(texts, 5)
    with pytest.raises(TargetError, match="not blank"):
        sample(["", " "], 5)
