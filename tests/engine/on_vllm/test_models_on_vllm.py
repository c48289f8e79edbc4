"""Speculation in the real engine and the same computed offline; the loss and text of a served target."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from draft_model.data.tokenizer import load_encoder
from draft_model.evaluation.held_out import held_out_splits
from draft_model.evaluation.offline import Pair, draft_matches, measure, replay
from draft_model.evaluation.online import serve
from draft_model.models import AcceptanceCounts, load_model, write_tokens
from draft_model.training.losses import next_token_logits, token_losses
from target_model.measure import serving
from target_model.tasks import EvaluationPrompts
from tests.support.models import DRAFT, ROOT, TARGET

pytestmark = [pytest.mark.full, pytest.mark.serial]

NUM_CURSORS = 100
MAX_TOKENS = 12
SPECULATE = 4
TEMPERATURES = (0.0, 0.2, 0.8)
SOURCES = ("tasks.py", "quantise.py")
BEGUN = ("def __in", "for i in ra", "if __name__ == ", "import o")


@dataclass(frozen=True)
class Measured:
    """Acceptance offline and served; the greedy one is of the pair's own texts, the others of the engine's."""

    offline: dict[float, AcceptanceCounts]
    served: dict[float, AcceptanceCounts]


@pytest.fixture(scope="module")
def measured() -> Measured:
    encoder = load_encoder(TARGET)
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "completion_server").rglob("*.py"))]
    splits = held_out_splits([text for text in texts if not encoder.holds_marker(text)], NUM_CURSORS)
    torch.set_num_threads(2)
    pair = Pair(load_model(TARGET), load_model(DRAFT), encoder)
    offline = {0.0: measure(pair, splits, MAX_TOKENS).acceptance(SPECULATE)}
    prompts = [encoder.encode_prompt(split.before, split.typed, split.after) for split in splits]
    served = serve(
        TARGET, DRAFT, prompts, num_speculative_tokens=SPECULATE, max_tokens=MAX_TOKENS, stops=encoder.stops,
        temperatures=TEMPERATURES,
    )  # fmt: skip
    gc.collect()
    for degree, one in zip(TEMPERATURES[1:], served[1:], strict=True):
        torch.manual_seed(0)
        texts = zip(prompts, one.texts, strict=True)
        offline[degree] = sum(
            (replay_text(pair, prompt, text, degree) for prompt, text in texts), AcceptanceCounts(0, (0,) * SPECULATE)
        )
    counted = [one.acceptance for one in served if one.acceptance is not None]
    return Measured(offline, dict(zip(TEMPERATURES, counted, strict=True)))


def replay_text(pair: Pair, prompt: Sequence[int], text: Sequence[int], temperature: float) -> AcceptanceCounts:
    """Replay the acceptance along a text. Beyond its end the engine's draws are unknown: another text replaces them."""
    beyond = write_tokens(pair.target, [*prompt, *text], SPECULATE, temperature)
    return replay(draft_matches(pair, prompt, [*text, *beyond]), SPECULATE, len(text))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_acceptance_in_the_engine_equals_acceptance_computed_offline(measured: Measured, temperature: float) -> None:
    offline, served = measured.offline[temperature], measured.served[temperature]
    assert served.num_drafts > 100
    assert served.per_token == pytest.approx(offline.per_token, abs=0.02)
    assert served.mean_length == pytest.approx(offline.mean_length, abs=0.02 * SPECULATE)
    assert served.per_position == pytest.approx(offline.per_position, abs=0.05)


@pytest.mark.timeout(300)
def test_a_served_target_has_the_loss_of_its_weights_and_ends_at_stops() -> None:
    encoder = load_encoder(TARGET)
    rows = [encoder.encode((ROOT / "target_model" / name).read_text(encoding="utf-8"))[:300] for name in SOURCES]
    prompts = [encoder.encode_prompt("import os\n\n\n", typed, "") for typed in BEGUN]
    with serving(TARGET) as served:
        losses = served.losses(rows)
        whole = served.complete(EvaluationPrompts(prompts, encoder.stops), 12)
        at_once = served.complete(EvaluationPrompts(prompts, list(range(encoder.vocab_size))), 12)
        speed, memory_bytes = served.time(prompts), served.memory_bytes()
    gc.collect()
    model = load_model(TARGET)
    for row, loss in zip(rows, losses, strict=True):
        ids = torch.tensor([row])
        assert loss == pytest.approx(float(token_losses(next_token_logits(model, ids), ids).sum()), rel=0.01)
    assert any(whole), "something is written"
    assert not any(at_once), "every token ends the completion"
    assert min(speed.ttft_ms, speed.tokens_per_s, speed.tokens_per_s_together) > 0
    assert memory_bytes > 1 << 28, "an engine with torch in it"
