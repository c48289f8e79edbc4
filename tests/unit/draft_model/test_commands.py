"""The command line: the steps one by one, and errors before they begin: one line, and no file is lost or left."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from draft_model.__main__ import main
from draft_model.core import PRESETS, Preset
from draft_model.corpus.store import Corpus
from draft_model.data.shards import DataSettings
from tests.support.models import DRAFT, TARGET

TRAIN = "train --preset embedded-draft --out run"
COMMANDS = (
    "corpus", "tokenizer", "data", "train", "plan", "generate", "evaluate", "held-out", "build-embedded",
)  # fmt: skip


def refused(*arguments: str | Path) -> str:
    """What the command says when it refuses, on one line."""
    result = CliRunner().invoke(main, ["--threads", "1", *map(str, arguments)])
    assert result.exit_code in {1, 2}, result.output
    assert result.exc_info is not None
    assert result.exc_info[0] is SystemExit, "a line, no traceback"
    return " ".join(result.output.split())


def test_the_steps_one_by_one(
    repositories: Path, preset: Preset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRESETS, "tiny", preset)
    monkeypatch.setattr("draft_model.commands.corpus.DataSettings", partial(DataSettings, blocks_a_shard=16))
    monkeypatch.chdir(tmp_path)
    steps = [
        f"corpus --out corpus --repositories {repositories} --hold-out two --held-out-percent 0",
        "tokenizer --corpus corpus --out tokenizer --vocab-size 320",
        "data --corpus corpus --tokenizer tokenizer --out data --tokens 4e3 --row-tokens 64,32 --block-tokens 64",
        "train --preset tiny --data data --out run --tokens 512",
        "train --preset tiny --data data --out taught --tokens 512 --teacher run/model --mix 1 --start-from run/model",
    ]
    for step in steps:
        done = CliRunner().invoke(main, ["--threads", "1", *step.split()])
        assert done.exit_code == 0, done.output
    assert "512 tokens in 2 steps" in CliRunner().invoke(main, ["--threads", "1", *steps[3].split()]).output
    assert (tmp_path / "taught" / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("held-out --model missing --corpus draft_model", "no corpus in"),
        ("corpus --out c --folder missing", "not a folder"),
        ("tokenizer --corpus missing", "draft-model corpus"),
        ("data --tokens 1 --tokenizer missing", "no tokenizer.json"),
        ("data --tokens many", "'many' is not a number"),
        ("data --tokens 1 --row-tokens x", "not a list of numbers"),
        ("data --tokens 1 --row-tokens 100", "must divide the block"),
        ("train --preset enormous --out o", "no preset 'enormous'; there are: draft-1b, embedded-draft"),
        (f"{TRAIN} --data missing", "draft-model data"),
        (f"{TRAIN} --mix 0.5", "--mix has no effect without --teacher"),
        ("evaluate --target t --draft d --prompt-tokens 5", "--prompt-tokens has no effect without --prompts"),
        (f"{TRAIN} --tokens -5", "'-5' is less than 1"),
        ("generate --target t --out g --engine-options [1]", "is not a JSON object"),
        ("generate --target t --out g --engine-options {", "is not JSON"),
        (f"evaluate --target {TARGET} --draft other", "no tokenizer.json"),
        ('evaluate --target t --draft d --engine-options {"max_num_seqs":2}', "no setting to choose here"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments.split())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_never_replaced(repositories: Path, corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    source = repositories / "one"
    files = sorted(source.iterdir())
    collect = ("corpus", "--folder", source, "--folder", repositories / "three", "--hold-out", "three", "--out")
    assert "holds something else: it has no corpus.json" in refused(*collect, source)
    assert sorted(source.iterdir()) == files
    assert "holds something else" in refused(*collect, tmp_path)
    assert "exists already" in refused("tokenizer", "--corpus", corpus.folder, "--out", tmp_path)
    models = ("--target", "target_model/embedded", "--draft", "draft_model/embedded")
    assert "no report.json" in refused("evaluate", *models, "--out", tmp_path)
    assert "no config.json" in refused("build-embedded", "--work", tmp_path / "w", "--draft-out", tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_an_unknown_repository_to_hold_out_is_named(repositories: Path, tmp_path: Path) -> None:
    names = ("--hold-out", "Three", "--hold-out", "thre")
    said = refused("corpus", "--repositories", repositories, *names, "--out", tmp_path / "corpus")
    assert said.endswith("nothing usable of it was read: thre")
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
        arguments = ("--target", TARGET, "--draft", draft, "--prompts", prompts, "--corpus", "draft_model/held_out")
        assert re.search(message, refused("evaluate", *arguments))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_teaches_with_an_example(command: str) -> None:
    result = CliRunner().invoke(main, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "draft-model " in result.output
