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
from target_model.calibrate import MAX_CHARACTERS, Calibration, quantise_calibrated, sample
from target_model.core import TargetError
from target_model.quantise import quantise_folder
from tests.support.redis_servers import wait_until

PASSES = 'tell(done=1, total=2); tell(warning="odd"); tell(warning="odd"); write(); tell(done=2, total=2)'
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
DOWN_PROJ = "model.layers.0.mlp.down_proj.weight"


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
    tensors = {{"{Q_PROJ}": np.zeros((8, 8), dtype="{dtype}"), "{DOWN_PROJ}": np.zeros((8, 16), dtype="{dtype}"),
        "{Q_PROJ}_scale": np.full((8, 1), {scale}, dtype="float32"),
        "model.norm.weight": np.full((8,), 0.5, dtype="float32")}}
    save_file(tensors, job["out"] + "/model.safetensors")
    pathlib.Path(job["out"], "config.json").write_text("of another version")
{does}
""")
    path.chmod(0o755)
    return path


def test_the_copy_has_the_format_of_the_one_made_without_data_and_the_settings_are_passed_on(
    model: Path, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []
    how = Calibration(["x = 1\n", "y = 2\n"], 2, 0.25, interpreter(tmp_path, PASSES))
    report, warnings = quantise_calibrated(model, tmp_path / "out", how, lambda *at: seen.append(at))
    quantise_folder(model, tmp_path / "plain")
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert (tmp_path / "out" / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
    assert (report.num_quantised, report.num_kept, report.worst_relative_error) == (2, 1, None)
    assert warnings == ["odd"]
    assert seen == [(1, 2), (2, 2)]
    arguments, job = json.loads((tmp_path / "called.json").read_text())
    assert arguments[0] == "-I"
    assert arguments[1].endswith("target_model/llmcompressor_job.py")
    assert (job["model"], job["texts"], job["smoothing"]) == (str(model), ["x = 1\n", "y = 2\n"], 0.25)
    assert job["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def test_a_signal_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    """As a service manager ends it; the other environment's process ends with it."""
    python = interpreter(tmp_path, "(here / 'pid').write_text(str(os.getpid())); signal.pause()")
    (tmp_path / "texts.jsonl").write_text('{"text": "x = 1"}\n')
    command = [sys.executable, "-m", "target_model", "quantize", "--model", str(model), "--out", str(tmp_path / "out")]
    command += ["--calibration", str(tmp_path / "texts.jsonl"), "--calibration-python", str(python)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        pid = tmp_path / "pid"
        try:
            wait_until(lambda: process.poll() is not None or (pid.is_file() and bool(pid.read_text())), 60)
            assert process.poll() is None
            process.terminate()
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


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
def test_a_failure_there_is_reported_and_leaves_nothing(does: str, message: str, model: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path, does)
    with pytest.raises(TargetError, match=message):
        quantise_calibrated(model, tmp_path / "out", Calibration(["x = 1\n"], python=python))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["called.json", "model", "python"]


def test_the_returned_model_is_checked(model: Path, tmp_path: Path) -> None:
    python = interpreter(tmp_path, "write()", dtype="float32")
    with pytest.raises(TargetError, match="other layers than asked for"):
        quantise_calibrated(model, tmp_path / "out", Calibration(["x"], python=python))
    python = interpreter(tmp_path, "write()", scale="float('nan')")
    with pytest.raises(TargetError, match=r"q_proj\.weight_scale with values that are not finite"):
        quantise_calibrated(model, tmp_path / "out", Calibration(["x"], python=python))
    assert not (tmp_path / "out").exists()


def test_an_interruption_ends_the_other_process_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    python = interpreter(tmp_path, "tell(done=1, total=2); signal.pause()")
    with pytest.raises(KeyboardInterrupt):
        quantise_calibrated(model, tmp_path / "out", Calibration(["x"], python=python), interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["called.json", "model", "python"]


def test_what_can_not_be_calibrated_is_refused_before_anything_starts(model: Path, tmp_path: Path) -> None:
    no_program = tmp_path / "text"
    no_program.write_text("x")
    for python, match in ((tmp_path / "none", "run `make calibration`"), (no_program, "cannot start")):
        with pytest.raises(TargetError, match=match):
            quantise_calibrated(model, tmp_path / "out", Calibration(["x"], python=python))
    save_file({"h.0.attn.c_attn.weight": torch.ones(4, 4)}, model / "model.safetensors")
    with pytest.raises(TargetError, match=r"c_attn.weight: this scheme knows no such matrix"):
        quantise_calibrated(model, tmp_path / "out", Calibration(["x"], python=interpreter(tmp_path, "pass")))
    assert not (tmp_path / "called.json").exists()
    assert not (tmp_path / "out").exists()


def test_a_sample_is_spread_over_all_texts_and_always_the_same() -> None:
    texts = [f"{number}" * (MAX_CHARACTERS + 100) for number in range(10)] + ["", " \n"]
    chosen = sample(texts, 5)
    assert [text[0] for text in chosen] == ["0", "2", "4", "6", "8"]
    assert {len(text) for text in chosen} == {MAX_CHARACTERS}
    assert chosen == sample(texts, 5)
    assert len(sample(texts, 100)) == 10
    with pytest.raises(TargetError, match="not blank"):
        sample(["", " "], 5)


def test_the_command_calibrates_and_explains(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "x = 1"}\n')
    python = interpreter(tmp_path, PASSES)
    command = ["quantize", "--model", str(model), "--calibration", str(data), "--calibration-python", str(python)]
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out"), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["worst_relative_error"]) == (0, None)
    assert "Warning: odd" in result.stderr
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out2")])
    assert "2 matrices in int8" in result.stdout
    data.write_text("")
    result = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "out3")])
    assert result.exit_code == 1
    assert "has no texts" in result.output
