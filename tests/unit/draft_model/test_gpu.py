"""The GPU figures: the parts can read the files that the program writes. `--tiny` runs all of it by hand."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from transformers import AutoConfig

from draft_model.core import PRESETS
from draft_model.data.shards import BlockSource
from draft_model.gpu import FULL, TINY, main, time_steps, write_data, write_model
from target_model.quantise import quantization_config


def test_the_trainer_reads_its_random_data_and_the_target_is_a_13b_llama_in_int8(tmp_path: Path) -> None:
    write_data(replace(FULL, block_tokens=4096), tmp_path / "data")
    source = BlockSource(tmp_path / "data", 0)
    assert source.manifest.vocab_size == PRESETS["draft-1b"].shape.vocab_size
    block = source.block(0)
    assert block.ids.shape == block.is_middle.shape == (1, 4096)
    assert 0 <= int(block.ids.min()) <= int(block.ids.max()) < 32_016
    assert FULL.batch_tokens % FULL.block_tokens == FULL.block_tokens % PRESETS["draft-1b"].shape.context_tokens == 0
    write_model(FULL.target, tmp_path / "target", is_int8=True)
    assert 12.5e9 < FULL.target.num_parameters < 13.5e9
    config = AutoConfig.from_pretrained(tmp_path / "target")
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (40, 5120, 32_016)
    written = json.loads((tmp_path / "target" / "config.json").read_text())
    assert written["quantization_config"] == quantization_config()
    assert (written["dtype"], written["architectures"]) == ("bfloat16", ["LlamaForCausalLM"])


def test_the_figures_are_the_last_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: list[str]) -> tuple[str, float]:
        if "--step" in command:
            target, draft = {"1": 4.0, "2": 8.0, "4": None}, {"1": 1.0, "2": 4.0, "4": 5.0}
            return f"chatter\n{json.dumps(target if 'target' in command[4] else draft)}\n", 0.0
        out = Path(command[command.index("--out") + 1])
        out.mkdir()
        steps = [{"tokens_per_s": 100.0 * number, "utilisation": 0.1} for number in range(1, 6)]
        (out / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
        return "", 512.0

    monkeypatch.setattr("draft_model.gpu.run", run)
    monkeypatch.setattr("draft_model.gpu.ask_driver", lambda _field: "")
    result = CliRunner().invoke(main, ["--tiny"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout.splitlines()[-1])
    assert (printed["train"]["tokens_per_s"], printed["train"]["steps"]) == (450, 2)
    assert printed["target"]["step_ms"]["4"] is None
    assert printed["draft_to_target"] == {"1": 0.25, "2": 0.5, "4": None}
    assert printed["target"]["scheme"] == "w8a8"


class FakeLLM:
    """In vLLM's place: a KV cache of 24 blocks of 16 tokens, one of them vLLM's own."""

    def __init__(self, **_: Any) -> None:
        cache = SimpleNamespace(num_gpu_blocks=24, block_size=16)
        self.llm_engine = SimpleNamespace(
            vllm_config=SimpleNamespace(cache_config=cache), engine_core=SimpleNamespace(shutdown=lambda: None)
        )

    def generate(self, prompts: list[dict[str, list[int]]], *_: Any, **__: Any) -> None:
        assert [len(prompt["prompt_token_ids"]) for prompt in prompts] == [32] * len(prompts)
        assert len(prompts) <= 7


def test_a_batch_that_the_kv_cache_cannot_hold_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    platforms = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: True))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=FakeLLM, SamplingParams=dict))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    errors = SimpleNamespace(EngineDeadError=RuntimeError)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.exceptions", errors)
    write_model(TINY.target, tmp_path / "model", is_int8=False)
    # 32 tokens of prompt, 8 timed and 1 before them: 3 blocks each.
    found = time_steps(tmp_path / "model", replace(TINY, batch_sizes=(1, 7, 8)))
    assert list(found) == ["1", "7", "8"]
    assert [value is None for value in found.values()] == [False, False, True]
    printed = capsys.readouterr().err
    assert printed == "left out: 8 sequences of 41 tokens at once; the KV cache holds 7, in 24 blocks of 16 tokens\n"
