"""The committed models: small enough, complete, and with one tokenizer."""

from pathlib import Path

import pytest

from draft_model.corpus import is_held_out
from draft_model.evaluate import load_model
from draft_model.model import num_parameters
from draft_model.presets import find_preset
from draft_model.tokenizer import Encoder, load_tokenizer

ROOT = Path(__file__).parents[3]
FOLDERS = {"embedded-target": ROOT / "target_model/embedded", "embedded-draft": ROOT / "draft_model/embedded"}
MAX_TOTAL_BYTES = 25_000_000


def test_both_together_are_small() -> None:
    total = sum(path.stat().st_size for folder in FOLDERS.values() for path in folder.iterdir())
    assert total <= MAX_TOTAL_BYTES


def test_they_share_a_tokenizer() -> None:
    target, draft = ((folder / "tokenizer.json").read_bytes() for folder in FOLDERS.values())
    assert target == draft


@pytest.mark.parametrize("name", list(FOLDERS))
def test_a_model_has_the_shape_of_its_preset_and_the_card_says_so(name: str) -> None:
    model, shape = load_model(FOLDERS[name]), find_preset(name).shape
    encoder = Encoder(load_tokenizer(FOLDERS[name]))
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size) == (shape.num_layers, shape.hidden_size)
    assert config.max_position_embeddings == shape.context_tokens
    assert model.generation_config.eos_token_id == encoder.end
    assert f"| parameters | {num_parameters(model):,} |" in (FOLDERS[name] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "expected"), [("statistics.py", True), ("io.py", True), ("json/decoder.py", False), ("os.py", False)]
)
def test_the_split_is_still_the_one_that_the_figures_were_measured_on(path: str, expected: bool) -> None:
    assert is_held_out("python-stdlib", path) is expected
