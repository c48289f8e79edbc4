"""The real llmcompressor, and its copy in the real engine; some minutes."""

import json
import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from target_model.__main__ import main
from target_model.calibrate import ENVIRONMENT, Calibration, quantise_calibrated
from target_model.core import TargetError
from target_model.quantise import quantise_folder
from tests.support.models import ROOT, TARGET_BF16

pytestmark = [
    pytest.mark.serial,
    pytest.mark.full,
    pytest.mark.skipif(
        "CI" not in os.environ and not ENVIRONMENT.exists(), reason="there is no environment: make calibration"
    ),
]
TEXTS = [path.read_text() for path in sorted((ROOT / "target_model").rglob("*.py"))]
HELD_OUT = [path.read_text() for path in sorted((ROOT / "loadtest" / "report").glob("*.py"))[:4]]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calibrated") / "model"
    report = quantise_calibrated(TARGET_BF16, out, Calibration(TEXTS))
    assert report.num_quantised == 7 * json.loads((TARGET_BF16 / "config.json").read_text())["num_hidden_layers"]
    return out


def test_it_has_the_tensors_of_the_copy_made_without_data(calibrated: Path, tmp_path: Path) -> None:
    quantise_folder(TARGET_BF16, tmp_path / "plain")
    assert (calibrated / "config.json").read_text() == (tmp_path / "plain" / "config.json").read_text()
    ours, plain = (load_file(folder / "model.safetensors") for folder in (calibrated, tmp_path / "plain"))
    assert {name: values.shape for name, values in ours.items()} == {name: v.shape for name, v in plain.items()}
    is_int8 = [name for name, values in plain.items() if values.dtype == torch.int8]
    assert all(ours[name].dtype == torch.int8 and not torch.equal(ours[name], plain[name]) for name in is_int8)
    assert torch.equal(ours["model.embed_tokens.weight"], plain["model.embed_tokens.weight"])


def test_the_engine_loads_it_and_its_loss_is_close(calibrated: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "held_out.jsonl", tmp_path / "figures.json"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in HELD_OUT))
    command = ["evaluate", "--model", f"bf16={TARGET_BF16}", "--model", f"int8={calibrated}", "--held-out", str(data)]
    result = CliRunner().invoke(main, [*command, "--out", str(out)])
    assert result.exit_code == 0, result.output
    full, int8 = json.loads(out.read_text())
    assert int8["loss"]["value"] == pytest.approx(full["loss"]["value"], rel=0.02)
    assert int8["weight_bytes"] < full["weight_bytes"]


def test_gptq_without_smoothing_and_its_refusals(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = quantise_calibrated(TARGET_BF16, tmp_path / "rounded", Calibration(TEXTS[:2], smoothing=0.0))
    assert report.num_quantised > 0
    plain = load_file(TARGET_BF16 / "model.safetensors")
    kept = load_file(tmp_path / "rounded" / "model.safetensors")
    assert torch.equal(kept["model.norm.weight"], plain["model.norm.weight"])
    assert torch.equal(kept["model.layers.0.input_layernorm.weight"], plain["model.layers.0.input_layernorm.weight"]), (
        "without smoothing the norms stay as they are"
    )

    broken = tmp_path / "broken"
    broken.mkdir()
    for path in TARGET_BF16.glob("*.json"):
        (broken / path.name).write_bytes(path.read_bytes())
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(plain | {name: plain[name] * float("nan")}, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TargetError, match="its own words are above"):
        quantise_calibrated(broken, tmp_path / "out", Calibration(TEXTS[:2]))
    assert "up_proj.weight: a weight is not finite" in capfd.readouterr().err
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"model_type": "llamb", "architectures": ["LlambLM"]}))
    with pytest.raises(TargetError, match="its own words are above"):
        quantise_calibrated(broken, tmp_path / "out", Calibration(TEXTS[:2]))
    assert "transformers does not load" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
