"""The committed models: small enough, complete, and with one tokenizer."""

from pathlib import Path

import pytest

from draft_model.core.presets import find_preset
from draft_model.data.tokenizer import load_encoder
from draft_model.models.loading import load_model
from draft_model.models.network import num_parameters
from target_model.quantisation.quantise import quantise_folder

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
