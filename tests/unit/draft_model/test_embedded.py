"""The committed models: small enough, complete, and with one tokenizer."""

from pathlib import Path

import pytest

from draft_model.data.tokenizer import load_encoder
from draft_model.evaluation.loading import load_model
from draft_model.training.model import num_parameters

ROOT = Path(__file__).parents[3]
FOLDERS = {"embedded-target": ROOT / "target_model/embedded", "embedded-draft": ROOT / "draft_model/embedded"}
MAX_TOTAL_BYTES = 40_000_000


def test_both_together_are_small() -> None:
    total = sum(path.stat().st_size for folder in FOLDERS.values() for path in folder.iterdir())
    assert total <= MAX_TOTAL_BYTES


def test_they_share_a_tokenizer() -> None:
    target, draft = ((folder / "tokenizer.json").read_bytes() for folder in FOLDERS.values())
    assert target == draft


@pytest.mark.parametrize("name", list(FOLDERS))
def test_a_model_is_what_the_card_says(name: str) -> None:
    model, encoder = load_model(FOLDERS[name]), load_encoder(FOLDERS[name])
    assert model.config.vocab_size == encoder.vocab_size
    assert model.generation_config.eos_token_id == encoder.end
    assert f"| parameters | {num_parameters(model):,} |" in (FOLDERS[name] / "README.md").read_text(encoding="utf-8")
