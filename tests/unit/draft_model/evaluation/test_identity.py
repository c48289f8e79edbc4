"""Greedy text with and without a draft: the first difference of two texts, and the gap of the logits there."""

import gzip
from pathlib import Path

import pytest
import torch

from draft_model.core import PipelineError, Preset
from draft_model.evaluation.online import IdentityReport, TextDifference, compare, describe, read_prompts
from draft_model.models.network import make_model

END = 0


def test_same_texts_are_identical(preset: Preset) -> None:
    found = compare(make_model(preset.shape, 1), [[1, 2]], [[3, 4]], [[3, 4]])
    assert found.share == 1.0
    assert describe(found) == "1 of 1 greedy completions are the same with the draft."


def test_where_texts_diverge_the_gap_is_that_of_the_targets_logits(preset: Preset) -> None:
    model = make_model(preset.shape, 1).eval()
    found = compare(model, [[1, 2], [5]], [[3, 4, 7], [6]], [[3, 9], [6]])
    (difference,) = found.differences
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[1, 2, 3]])).logits[0, -1]
    assert (difference.prompt, difference.place) == (0, 1)
    assert difference.gap_nats == pytest.approx(abs(float(logits[4] - logits[9])), rel=1e-4)
    assert found.share == 0.5
    assert "1 of 2" in describe(found)
    close, wide = (IdentityReport(1, (TextDifference(0, 1, gap),)) for gap in (0.1, 1.0))
    assert describe(close).endswith("0.100 nats apart at most, which rounding to bfloat16 explains.")
    assert describe(wide).endswith("1.000 nats apart at most, more than rounding to bfloat16 explains.")


def test_a_text_that_stops_earlier_diverges_at_its_end(preset: Preset) -> None:
    model = make_model(preset.shape, 1).eval()
    (difference,) = compare(model, [[1]], [[3, END]], [[3, 9]]).differences
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[1, 3]])).logits[0, -1]
    assert difference.place == 1
    assert difference.gap_nats == pytest.approx(abs(float(logits[END] - logits[9])), rel=1e-4)


def test_prompts_are_read_packed_or_not_and_refused_by_name(tmp_path: Path) -> None:
    plain, packed, bad = (tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl"))
    plain.write_text('{"prompt": "def f():"}\n\n', encoding="utf-8")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_prompts(plain) == read_prompts(packed) == ["def f():"]
    for content, word in (("{}", "prompt"), ("", "no prompts"), ("[", "prompt")):
        bad.write_text(content, encoding="utf-8")
        with pytest.raises(PipelineError, match=word):
            read_prompts(bad)
    with pytest.raises(PipelineError, match="cannot read"):
        read_prompts(tmp_path / "none.jsonl")
