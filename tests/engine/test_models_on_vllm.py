"""Speculation in the real engine and the same computed offline; the loss and text of a served target."""

import gc
from pathlib import Path

import pytest
import torch

from draft_model.data.tokenizer import load_encoder
from draft_model.evaluation.acceptance import Acceptance
from draft_model.evaluation.held_out import held_out_splits
from draft_model.evaluation.loading import load_model
from draft_model.evaluation.offline import Pair, measure
from draft_model.evaluation.online import serve
from draft_model.training.loss import token_losses
from target_model.prompts import Prompts
from target_model.served import serving
from tests.support.models import DRAFT, TARGET

ROOT = Path(__file__).parents[2]
NUM_CURSORS = 100
MAX_TOKENS = 12
SPECULATE = 4
TEMPERATURES = (0.0, 0.8)
SOURCES = ("tasks.py", "scheme.py")
BEGUN = ("def __in", "for i in ra", "if __name__ == ", "import o")


Both = tuple[Acceptance, Acceptance]


@pytest.fixture(scope="module")
def offline_and_served() -> dict[float, Both]:
    """By temperature."""
    encoder = load_encoder(TARGET)
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "completion_server").rglob("*.py"))]
    splits = held_out_splits([text for text in texts if not encoder.holds_marker(text)], NUM_CURSORS)
    torch.set_num_threads(2)
    pair = Pair(load_model(TARGET), load_model(DRAFT), encoder)
    tallies = [measure(pair, splits, MAX_TOKENS, degree) for degree in TEMPERATURES]
    prompts = [encoder.encode_prompt(split.before, split.typed, split.after) for split in splits]
    served = serve(
        TARGET, DRAFT, prompts, num_speculative_tokens=SPECULATE, max_tokens=MAX_TOKENS, stops=encoder.stops,
        temperatures=TEMPERATURES,
    )  # fmt: skip
    gc.collect()
    counted = [one.acceptance for one in served if one.acceptance is not None]
    offline = [tally.acceptance(SPECULATE) for tally in tallies]
    return dict(zip(TEMPERATURES, zip(offline, counted, strict=True), strict=True))


@pytest.mark.timeout(300)
def test_the_engine_accepts_what_was_computed_offline(offline_and_served: dict[float, Both]) -> None:
    offline, served = offline_and_served[0.0]
    assert served.num_drafts > 100
    assert served.per_token == pytest.approx(offline.per_token, abs=0.02)
    assert served.mean_length == pytest.approx(offline.mean_length, abs=0.02 * SPECULATE)
    assert served.per_position == pytest.approx(offline.per_position, abs=0.05)


@pytest.mark.timeout(300)
def test_at_a_temperature_as_well_as_far_as_other_texts_allow(offline_and_served: dict[float, Both]) -> None:
    """Each draws its own texts, so two runs of one would differ: by three points in two of three times."""
    offline, served = offline_and_served[0.8]
    assert offline.per_position[1] > 0.1
    assert served.per_position == pytest.approx(offline.per_position, abs=0.09)


@pytest.mark.timeout(300)
def test_a_served_target_has_the_loss_of_its_weights_and_ends_where_it_is_told_to() -> None:
    encoder = load_encoder(TARGET)
    rows = [encoder.encode((ROOT / "target_model" / name).read_text(encoding="utf-8"))[:300] for name in SOURCES]
    prompts = [encoder.encode_prompt("import os\n\n\n", typed, "") for typed in BEGUN]
    with serving(TARGET) as served:
        losses = served.losses(rows)
        whole = served.complete(Prompts(prompts, encoder.stops), 12)
        at_once = served.complete(Prompts(prompts, list(range(encoder.vocab_size))), 12)
        speed, memory_bytes = served.time(prompts), served.memory_bytes()
    gc.collect()
    model = load_model(TARGET)
    for row, loss in zip(rows, losses, strict=True):
        assert loss == pytest.approx(float(token_losses(model, torch.tensor([row])).sum()), rel=0.01)
    assert any(whole), "something is written"
    assert not any(at_once), "every token ends the completion"
    assert min(speed.ttft_ms, speed.tokens_per_s, speed.tokens_per_s_together) > 0
    assert memory_bytes > 1 << 28, "an engine with torch in it"
