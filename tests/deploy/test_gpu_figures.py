"""The script of GPU figures: what it writes is what the parts that it starts read. `--tiny` runs all of it by hand."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner
from transformers import AutoConfig

from draft_model.data.blocks import BlockSource
from draft_model.presets import PRESETS
from target_model.scheme import quantization_config

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "gpu" / "measure_models.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_models", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_trainer_reads_its_random_data(script: ModuleType, tmp_path: Path) -> None:
    plan = replace(script.FULL, block_tokens=4096)
    script.write_data(plan, tmp_path / "data")
    source = BlockSource(tmp_path / "data", 0)
    assert source.manifest.vocab_size == PRESETS["draft-1b"].shape.vocab_size
    block = source.block(0)
    assert block.ids.shape == block.is_middle.shape == (1, 4096)
    assert 0 <= int(block.ids.min()) <= int(block.ids.max()) < 32_016
    assert plan.batch_tokens % script.FULL.block_tokens == 0
    assert script.FULL.block_tokens % PRESETS["draft-1b"].shape.context_tokens == 0


def test_the_target_is_a_13b_llama_in_int8(script: ModuleType, tmp_path: Path) -> None:
    script.write_model(script.FULL.target, tmp_path / "target", is_int8=True)
    assert 12.5e9 < script.FULL.target.num_parameters < 13.5e9
    config = AutoConfig.from_pretrained(tmp_path / "target")
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (40, 5120, 32_016)
    assert json.loads((tmp_path / "target" / "config.json").read_text())["quantization_config"] == quantization_config()


def test_the_figures_are_the_last_line(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: list[str]) -> str:
        if "--step" in command:
            return 'chatter\n{"1": 4.0, "2": 8.0}\n' if "target" in command[3] else '{"1": 1.0, "2": 4.0}\n'
        out = Path(command[command.index("--out") + 1])
        out.mkdir()
        steps = [{"tokens_per_s": 100.0 * number, "utilisation": 0.1} for number in range(1, 6)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        return ""

    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "device_name", lambda: "cpu")
    result = CliRunner().invoke(script.main, ["--tiny"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert (told["train"]["tokens_per_s"], told["train"]["steps"]) == (450, 2)
    assert told["draft_to_target"] == {"1": 0.25, "2": 0.5}
    assert told["target"]["scheme"] == "w8a8"
