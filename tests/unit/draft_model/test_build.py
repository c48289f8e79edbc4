"""The whole way with a tiny model, and the command line."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

import draft_model.__main__ as command_line
from draft_model.budget import Budget
from draft_model.build import Role, build_pair
from draft_model.errors import PipelineError
from draft_model.evaluate import load_model, measure_agreement
from draft_model.figures import BuildFigures
from draft_model.presets import PRESETS, Preset, find_preset
from draft_model.probes import PROBES
from draft_model.tokenizer import Encoder, load_tokenizer
from draft_model.workspace import Workspace

ONE_THREAD = ("--threads", "1")


@pytest.fixture
def built(tmp_path: Path, source_folder: Path, preset: Preset, monkeypatch: pytest.MonkeyPatch) -> BuildFigures:
    # The probes are longer than a context of 64 tokens.
    preset = replace(preset, shape=replace(preset.shape, context_tokens=256))
    monkeypatch.setattr("draft_model.evaluate.held_out_splits.__defaults__", (8, 11))
    target = Role(preset, Budget(steps=3), tmp_path / "target")
    draft = Role(replace(preset, name="tiny-draft"), Budget(steps=2), tmp_path / "draft")
    return build_pair(Workspace(tmp_path / "work"), target, draft, Console(file=StringIO()), source_folder)


def test_a_build_leaves_two_folders_that_transformers_loads(built: BuildFigures, tmp_path: Path) -> None:
    for name in ("target", "draft"):
        model = AutoModelForCausalLM.from_pretrained(str(tmp_path / name))
        tokenizer = AutoTokenizer.from_pretrained(str(tmp_path / name))
        assert model.dtype == torch.bfloat16
        assert model.config.eos_token_id == tokenizer.eos_token_id == 0
        assert len(tokenizer) == model.config.vocab_size
    assert built.target.num_steps == 3
    assert built.draft.num_steps == 2
    assert 0.0 <= built.agreement.text <= 1.0
    assert built.target.evaluation.bits_per_byte > 0


def test_the_card_tells_what_was_measured(built: BuildFigures, tmp_path: Path) -> None:
    card = (tmp_path / "target" / "README.md").read_text(encoding="utf-8")
    assert f"{built.target.evaluation.bits_per_byte:.3f}" in card
    assert f"| parameters | {built.target.num_parameters:,} |" in card
    assert "standard library" not in card
    assert "| sources | - | yours | 21 |" in card
    assert card.count("| no |") + card.count("| yes |") == len(PROBES)
    figures = json.loads((tmp_path / "work" / "figures.json").read_text())
    assert figures["target"]["num_tokens"] == built.target.num_tokens


def test_a_model_agrees_with_itself(built: BuildFigures, tmp_path: Path, source: str) -> None:
    model, encoder = load_model(tmp_path / "target"), Encoder(load_tokenizer(tmp_path / "target"))
    agreement = measure_agreement(model, model, encoder, [source], num_splits=4)
    assert (agreement.text, agreement.completions) == (1.0, 1.0)


def test_the_commands_measure_what_was_built(built: BuildFigures, tmp_path: Path) -> None:
    run = CliRunner().invoke
    model, work = str(tmp_path / "target"), str(tmp_path / "work")
    probes = run(command_line.main, [*ONE_THREAD, "probes", "--model", model, "--json"])
    assert [result["probe"]["typed"] for result in json.loads(probes.stdout)] == [probe.typed for probe in PROBES]
    table = run(command_line.main, [*ONE_THREAD, "probes", "--model", model])
    assert f"of {len(PROBES)} as expected" in table.output
    figures = run(
        command_line.main, [*ONE_THREAD, "evaluate", "--model", model, "--draft", model, "--work", work, "--json"]
    )
    assert json.loads(figures.stdout)["agreement_text"] == 1.0
    assert json.loads(figures.stdout)["loss"] == pytest.approx(built.target.evaluation.loss, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["probes", "--model", "missing"], "not a model folder"),
        (["corpus", "--folder", "missing"], "not a folder"),
        (["train", "embedded-draft", "--minutes", "1", "--steps", "1"], "not both"),
    ],
)
def test_bad_input_is_one_line_and_no_traceback(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command_line.main, arguments)
    assert result.exit_code in {1, 2}
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["build-embedded"], ["train"], ["corpus"], ["evaluate"], ["probes"]])
def test_help_teaches_with_an_example(arguments: list[str]) -> None:
    result = CliRunner().invoke(command_line.main, [*arguments, "--help"])
    assert result.exit_code == 0
    assert "draft-model " in result.output


def test_presets_are_found_by_name_and_fit_each_other() -> None:
    target, draft = find_preset("embedded-target"), find_preset("embedded-draft")
    assert target.shape.vocab_size == draft.shape.vocab_size
    assert target.shape.head_dim == draft.shape.head_dim
    assert all(preset.train.batch_tokens % rows == 0 for preset in PRESETS.values() for rows in preset.train.row_tokens)
    with pytest.raises(PipelineError, match="embedded-draft"):
        find_preset("enormous")


def test_the_probes_are_twenty_and_each_says_what_it_expects() -> None:
    assert len(PROBES) == 20
    assert all(probe.expected and "\n" not in probe.typed for probe in PROBES)
    assert all(probe.before == "" or probe.before.endswith("\n") for probe in PROBES)
