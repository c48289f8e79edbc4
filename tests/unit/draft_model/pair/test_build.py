"""The whole way with a tiny model, and the command line."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from draft_model.__main__ import main
from draft_model.core import PRESETS, Preset, find_preset
from draft_model.corpus.store import Corpus
from draft_model.data.shards import DataSettings
from draft_model.data.tokenizer import load_encoder
from draft_model.evaluation.held_out import PROBES
from draft_model.models.network import load_model, num_parameters
from draft_model.pair.build import BuildSettings, Role, build_pair
from draft_model.pair.card import BuildFigures, render_card
from draft_model.training.state import Budget
from target_model.quantisation.quantise import quantise_folder
from tests.support.models import DRAFT, TARGET
from tests.unit.draft_model.tiny import PRESET

ONE_THREAD = ("--threads", "1")
COMMANDS = (
    "corpus",
    "tokenizer",
    "data",
    "train",
    "plan",
    "generate",
    "evaluate",
    "held-out",
    "probes",
    "build-embedded",
)


@pytest.fixture(scope="module")
def work(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("work")
    (root / "corpus").symlink_to(corpus.folder)
    return root


@pytest.fixture(scope="module")
def built(work: Path) -> Iterator[BuildFigures]:
    # The probes are longer than a context of 64 tokens.
    preset = replace(PRESET, shape=replace(PRESET.shape, context_tokens=512))
    settings = BuildSettings(DataSettings(2048, 64, (64, 32), 32), num_cursors=6)
    target = Role(preset, Budget(steps=3), work / "out" / "target")
    draft = Role(replace(preset, name="tiny-draft"), Budget(steps=2), work / "out" / "draft")
    patch = pytest.MonkeyPatch()
    patch.setattr("draft_model.pair.build.PAIR_TOKENS", 6)
    patch.setattr("draft_model.evaluation.held_out.held_out_splits.__defaults__", (6, 11))
    yield build_pair(work, target, draft, settings, Console(file=StringIO()))
    patch.undo()


def test_a_build_leaves_two_folders_that_transformers_loads(built: BuildFigures, work: Path) -> None:
    for name in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(str(work / "out" / name))
        tokenizer = AutoTokenizer.from_pretrained(str(work / "out" / name))
        assert model.dtype == torch.bfloat16
        assert model.config.eos_token_id == tokenizer.eos_token_id == 0
        assert len(tokenizer) == model.config.vocab_size
    assert (built.target.num_steps, built.draft.num_steps) == (3, 2)
    assert built.target.evaluation.bits_per_byte > 0


def test_the_card_has_the_measurements(built: BuildFigures, work: Path) -> None:
    card = (work / "out" / "target" / "README.md").read_text(encoding="utf-8")
    assert f"{built.target.evaluation.bits_per_byte:.3f}" in card
    assert f"| parameters | {built.target.num_parameters:,} |" in card
    assert "standard library" not in card
    assert "budget was 3 steps." in " ".join(card.split())
    in_minutes = " ".join(render_card(replace(built, target=replace(built.target, minutes=90.0)), "target").split())
    assert "budget was 90 minutes, which end where the machine's speed puts it" in in_minutes
    taught_by_text = render_card(replace(built, num_generated=6000), "draft")
    assert "50% of its samples have text that the target generated at 6,000 cursors" in " ".join(taught_by_text.split())
    assert "It began with" not in card
    taught = " ".join((work / "out" / "draft" / "README.md").read_text(encoding="utf-8").split())
    layers = f"{built.draft.preset.shape.num_layers} of its {built.target.preset.shape.num_layers} layers."
    assert f"It began with the target's embedding and {layers} 70% of its loss is" in taught
    assert "the target generated" not in taught
    assert "| three | - | MIT | held-out | 8 |" in card
    assert card.count("| no |") + card.count("| yes |") == len(PROBES)
    figures = json.loads((work / "figures.json").read_text())
    assert figures["target"]["num_tokens"] == built.target.num_tokens


def test_the_commands_measure_the_built_models(built: BuildFigures, work: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    model, corpus = str(work / "out" / "target"), str(work / "corpus")
    probes = run(main, [*ONE_THREAD, "probes", "--model", model, "--json"])
    assert [result["probe"]["typed"] for result in json.loads(probes.stdout)] == [probe.typed for probe in PROBES]
    figures = run(main, [*ONE_THREAD, "held-out", "--model", model, "--corpus", corpus, "--json"])
    assert json.loads(figures.stdout)["loss"] == pytest.approx(built.target.evaluation.loss, abs=1e-4)
    pair = ["--target", model, "--draft", str(work / "out" / "draft"), "--corpus", corpus, "--no-engine"]
    sizes = ["--cursors", "4", "--offline-cursors", "2", "--max-tokens", "4", "--out", str(tmp_path / "report")]
    report = run(main, [*ONE_THREAD, "evaluate", *pair, *sizes])
    assert report.exit_code == 0, report.output
    assert report.stdout.startswith("2 completions")
    assert "| kind of code, predicted |" in report.stdout
    assert (tmp_path / "report" / "report.json").is_file()


def test_the_steps_one_by_one(
    repositories: Path, preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", preset)
    monkeypatch.chdir(tmp_path)
    steps = [
        f"corpus --out corpus --repositories {repositories} --hold-out two --held-out-percent 0",
        "tokenizer --corpus corpus --out tokenizer --vocab-size 320",
        "data --corpus corpus --tokenizer tokenizer --out data --tokens 4e3 --row-tokens 64,32 --block-tokens 64 "
        "--blocks-per-shard 16",
        "train --preset tiny --data data --out run --tokens 512 --no-compile",
        "train --preset tiny --data data --out taught --steps 2 --teacher run/model --mix 1 --no-compile",
        "train --preset tiny --data data --out begun --steps 1 --start-from run/model --no-compile",
    ]
    for step in steps:
        done = CliRunner().invoke(main, [*ONE_THREAD, *step.split()])
        assert done.exit_code == 0, done.output
    assert "512 tokens in 2 steps" in CliRunner().invoke(main, [*ONE_THREAD, *steps[3].split()]).output
    assert json.loads((tmp_path / "taught" / "metrics.jsonl").read_text().splitlines()[0])["divergence"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("probes --model missing", "not a model folder"),
        ("corpus --out c --folder missing", "not a folder"),
        ("tokenizer --corpus missing", "draft-model corpus"),
        ("data --tokens 1 --tokenizer missing", "no tokenizer.json"),
        ("data --tokens many", "'many' is not a number"),
        ("data --tokens 1 --row-tokens x", "not a list of numbers"),
        ("data --tokens 1 --row-tokens 100", "must divide the block"),
        ("data --tokens 1 --row-tokens 0", "must divide the block"),
        ("train --preset embedded-draft --out o --data missing", "draft-model data"),
        ("generate --target t --out g --engine-options [1]", "is not a JSON object"),
        ("generate --target t --out g --engine-options {", "is not JSON"),
        (f"evaluate --target {TARGET} --draft other", "no tokenizer.json"),
        ('evaluate --target t --draft d --engine-options {"max_num_seqs":2}', "no setting to choose here"),
        ("train --preset embedded-draft --out o --minutes 1 --steps 1", "one of them"),
    ],
)
def test_bad_input_is_one_line_and_no_traceback(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*ONE_THREAD, *arguments.split()])
    assert result.exit_code in {1, 2}
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_settings_that_the_engine_refuses_are_errors_before_anything_is_measured(tmp_path: Path) -> None:
    padded, prompts = tmp_path / "padded", tmp_path / "prompts.jsonl"
    shutil.copytree(DRAFT, padded)
    config = json.loads((padded / "config.json").read_text())
    (padded / "config.json").write_text(json.dumps(config | {"vocab_size": 4160}))
    prompts.write_text(json.dumps({"prompt": "x = 1\n"}) + "\n" + json.dumps({"prompt": "x = 1\n" * 1000}) + "\n")
    for draft, message in (
        (padded, "has a vocab_size of 4160, .* one of 4096"),
        (DRAFT, r"prompts.jsonl, prompt 2: .* tokens, more than the 992 that the context"),
    ):
        arguments = ["evaluate", "--target", str(TARGET), "--draft", str(draft), "--prompts", str(prompts)]
        result = CliRunner().invoke(main, [*ONE_THREAD, *arguments, "--corpus", "draft_model/held_out"])
        assert result.exit_code == 1
        assert re.search(message, " ".join(result.output.split())), result.output


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_teaches_with_an_example(command: str) -> None:
    result = CliRunner().invoke(main, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "draft-model " in result.output


def test_a_plan_is_printed() -> None:
    arguments = ["plan", "--gpus", "8", "--gpu", "a100", "--tokens", "50e9"]
    assert "days" in CliRunner().invoke(main, arguments).output
    assert json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)["gpu_hours"] > 0


def test_the_probes_are_twenty_and_each_says_what_it_expects() -> None:
    assert len(PROBES) == 20
    assert all(probe.expected and "\n" not in probe.typed for probe in PROBES)
    assert all(probe.before == "" or probe.before.endswith("\n") for probe in PROBES)


ROOT = Path(__file__).parents[4]
FOLDERS = {"embedded-target": ROOT / "target_model/embedded-bf16", "embedded-draft": ROOT / "draft_model/embedded"}
INT8 = ROOT / "target_model/embedded"
MAX_TOTAL_BYTES = 40_000_000


def test_all_together_are_small() -> None:
    folders = [*FOLDERS.values(), INT8]
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= MAX_TOTAL_BYTES


def test_the_target_that_is_served_is_the_int8_copy_of_the_other(tmp_path: Path) -> None:
    quantise_folder(FOLDERS["embedded-target"], tmp_path / "copy")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (INT8 / name).read_bytes()


def test_they_share_a_tokenizer() -> None:
    target, draft = ((folder / "tokenizer.json").read_bytes() for folder in FOLDERS.values())
    assert target == draft


@pytest.mark.parametrize("name", list(FOLDERS))
def test_a_model_has_the_shape_of_its_preset_and_the_card_says_so(name: str) -> None:
    model, encoder, shape = load_model(FOLDERS[name]), load_encoder(FOLDERS[name]), find_preset(name).shape
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (shape.num_layers, shape.hidden_size)
    assert model.config.max_position_embeddings == shape.context_tokens
    assert num_parameters(model) == shape.num_parameters
    assert model.config.vocab_size == encoder.vocab_size
    assert model.generation_config.eos_token_id == encoder.end
    assert f"| parameters | {num_parameters(model):,} |" in (FOLDERS[name] / "README.md").read_text(encoding="utf-8")
