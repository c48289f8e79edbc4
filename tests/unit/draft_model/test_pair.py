"""The whole way with a tiny pair, and the pair that comes with the server."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from draft_model.__main__ import main
from draft_model.commands import counting
from draft_model.core import find_preset
from draft_model.corpus.store import Corpus
from draft_model.data.shards import DataSettings
from draft_model.data.tokenizer import load_encoder
from draft_model.evaluation.held_out import evaluate
from draft_model.models import load_model
from draft_model.pair import BuildFigures, BuildSettings, build_pair, render_card
from target_model.quantise import quantise_folder
from tests.support.models import ROOT
from tests.unit.draft_model.tiny import PRESET

ONE_THREAD = ("--threads", "1")
FOLDERS = {"embedded-target": ROOT / "target_model/embedded-bf16", "embedded-draft": ROOT / "draft_model/embedded"}
INT8 = ROOT / "target_model/embedded"
MAX_TOTAL_BYTES = 40_000_000


@pytest.fixture(scope="module")
def work(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    (root / "corpus").symlink_to(corpus.folder)
    return root


@pytest.fixture(scope="module")
def built(work: Path) -> Iterator[BuildFigures]:
    preset = replace(PRESET, shape=replace(PRESET.shape, context_tokens=512))
    target, draft = replace(preset, num_tokens=3 * 256), replace(preset, name="tiny-draft", num_tokens=2 * 256)
    settings = BuildSettings(target, draft, DataSettings(2048, 64, (64, 32), 32), num_cursors=6)
    patch = pytest.MonkeyPatch()
    patch.setattr("draft_model.pair.PAIR_TOKENS", 6)
    patch.setattr("draft_model.pair.evaluate", partial(evaluate, num_splits=6))
    yield build_pair(work, settings, work / "out" / "target", work / "out" / "draft", counting)
    patch.undo()


def test_a_build_leaves_two_folders_that_transformers_loads(built: BuildFigures, work: Path) -> None:
    for name in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(str(work / "out" / name))
        tokenizer = AutoTokenizer.from_pretrained(str(work / "out" / name))
        assert model.dtype == torch.bfloat16
        assert model.config.eos_token_id == tokenizer.eos_token_id == 0
        assert len(tokenizer) == model.config.vocab_size
    assert (built.target.num_tokens, built.draft.num_tokens) == (3 * 256, 2 * 256)
    assert built.target.evaluation.bits_per_byte > 0


def test_the_card_has_the_measurements(built: BuildFigures, work: Path) -> None:
    card = (work / "out" / "target" / "README.md").read_text(encoding="utf-8")
    shown = (f"{built.target.evaluation.bits_per_byte:.3f}", f"| parameters | {built.target.num_parameters:,} |")
    for text in (*shown, "768 tokens in 3 steps", "| three | - | MIT | held-out | 8 |"):
        assert text in card
    taught = " ".join(render_card(replace(built, num_generated=6000), "draft").split())
    assert "50% of its samples have text that the target generated at 6,000 cursors" in taught
    assert "It began with the target's embedding and 2 of its 2 layers. 70% of its loss is" in taught
    assert "It began with" not in card
    figures = json.loads((work / "figures.json").read_text())
    assert figures["target"]["num_parameters"] == built.target.num_parameters


def test_the_commands_measure_the_built_models_and_say_how_far_they_are(
    built: BuildFigures, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draft_model.commands.QUIET_S", 0.01)
    run = CliRunner().invoke
    model, corpus = str(work / "out" / "target"), str(work / "corpus")
    figures = run(main, [*ONE_THREAD, "held-out", "--model", model, "--corpus", corpus, "--json"])
    assert re.search("rows and cursors: [0-9]+ of [0-9]+, [0-9]+ s", figures.stderr)
    assert json.loads(figures.stdout)["loss"] == pytest.approx(built.target.evaluation.loss, abs=1e-4)
    pair = ["--target", model, "--draft", str(work / "out" / "draft"), "--corpus", corpus, "--no-engine"]
    sizes = ["--cursors", "4", "--offline-cursors", "2", "--max-tokens", "4", "--out", str(tmp_path / "report")]
    report = run(main, [*ONE_THREAD, "evaluate", *pair, *sizes])
    assert report.exit_code == 0, report.output
    assert report.stdout.startswith("2 completions")
    assert "| kind of code, predicted |" in report.stdout
    assert (tmp_path / "report" / "report.json").is_file()


def test_the_pair_that_comes_along_is_small_and_shares_a_tokenizer_and_the_target_is_the_int8_copy(
    tmp_path: Path,
) -> None:
    paths = (path for folder in (*FOLDERS.values(), INT8) for path in folder.iterdir())
    assert sum(path.stat().st_size for path in paths) <= MAX_TOTAL_BYTES
    target, draft = ((folder / "tokenizer.json").read_bytes() for folder in FOLDERS.values())
    assert target == draft
    quantise_folder(FOLDERS["embedded-target"], tmp_path / "copy")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (INT8 / name).read_bytes()


@pytest.mark.parametrize("name", list(FOLDERS))
def test_a_model_has_the_shape_of_its_preset_and_the_card_says_so(name: str) -> None:
    model, encoder, shape = load_model(FOLDERS[name]), load_encoder(FOLDERS[name]), find_preset(name).shape
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (shape.num_layers, shape.hidden_size)
    assert model.config.max_position_embeddings == shape.context_tokens
    assert model.num_parameters() == shape.num_parameters
    assert model.config.vocab_size == encoder.vocab_size
    assert model.generation_config.eos_token_id == encoder.end
    assert f"| parameters | {shape.num_parameters:,} |" in (FOLDERS[name] / "README.md").read_text(encoding="utf-8")
