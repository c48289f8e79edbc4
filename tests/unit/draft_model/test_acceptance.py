"""Acceptance: the arithmetic, the kinds of code, the figures of a pair; and greedy text with and without a draft."""

import gzip
import json
from math import sqrt
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_model.core import PipelineError, Preset
from draft_model.data.fim import Split
from draft_model.data.tokenizer import TemplateEncoder
from draft_model.evaluation.held_out import held_out_splits
from draft_model.evaluation.kinds import Kind, kinds_of, kinds_of_pieces
from draft_model.evaluation.offline import (
    MAX_DRAFT,
    AcceptanceTally,
    Pair,
    draft_matches,
    expected_speedup,
    expected_tokens,
    measure,
    replay,
    share_interval,
    token_kinds,
)
from draft_model.evaluation.online import (
    DecodeTimes,
    EngineFigures,
    IdentityReport,
    TextDifference,
    compare,
    engine_run,
    read_prompts,
)
from draft_model.evaluation.report import Report, offline_figures
from draft_model.models import AcceptanceCounts, make_model, write_tokens

CODE = '''import os.path
# why
def size(self, items):
    """Count them."""
    for item in items:
        total = total + item * 2
    return len(items)
'''
BRACKETS = 'call(\n    # why\n    "text",\n)\n# why\n"""Said."""\n'


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 8))
def test_a_replay_is_what_a_step_by_step_speculation_does(matches: list[bool], length: int) -> None:
    at, drafts, accepted = 1, 0, 0
    while at < len(matches):
        drafts += 1
        taken = 0
        for match in matches[at : at + length]:
            if not match:
                break
            taken += 1
        accepted += taken
        at += taken + 1
    found = replay(matches, length)
    assert (found.num_drafts, sum(found.accepted_at)) == (drafts, accepted)
    assert list(found.accepted_at) == sorted(found.accepted_at, reverse=True)


def test_counts_equal_those_made_by_hand() -> None:
    #                 t      draft 1        draft 2      draft 3
    found = replay([True, True, True, False, False, True, True], 2)
    assert found == AcceptanceCounts(3, (2, 2))
    assert found.per_token == pytest.approx(2 / 3)
    assert found.per_position == pytest.approx((2 / 3, 2 / 3))
    assert found.mean_length == pytest.approx(7 / 3)
    assert found.conditional == pytest.approx(4 / 5)
    assert found + found == AcceptanceCounts(6, (4, 4))
    assert AcceptanceCounts(7, (5, 2)) - AcceptanceCounts(3, (1, 1)) == AcceptanceCounts(4, (4, 1))
    assert replay([], 3).per_token == 0.0
    over_the_end = replay([True, True, False, True, True, True, True], 3, num_tokens=4)
    assert over_the_end == AcceptanceCounts(2, (2, 1, 1)), "with the target's tokens there"
    assert replay([True, True, False, True], 3) == AcceptanceCounts(2, (2, 0, 0))


def test_the_formula_is_the_sum_that_it_stands_for() -> None:
    assert expected_tokens(0.8, 5) == pytest.approx(sum(0.8**power for power in range(6)))
    assert expected_tokens(1.0, 4) == 5.0
    assert expected_speedup(0.8, 5, 0.0) == pytest.approx(expected_tokens(0.8, 5))
    assert expected_speedup(0.0, 4, 0.25) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "piece", "kind"),
    [
        (CODE, "import", Kind.IDIOMS),
        (CODE, "# why", Kind.COMMENTS),
        (CODE, "size", Kind.IDENTIFIERS),
        (CODE, "):", Kind.SYNTAX),
        (CODE, "= total", Kind.LOGIC),
        (CODE, "len", Kind.IDIOMS),
        (BRACKETS, "text", Kind.LOGIC),
        (BRACKETS, "Said", Kind.COMMENTS),
        ('x = "abc\ny = len(z)\n', "len", Kind.IDIOMS),
    ],
)
def test_each_kind_of_code(text: str, piece: str, kind: Kind) -> None:
    assert kinds_of(text)[text.index(piece)] is kind


@given(st.text(alphabet="ab1 ()'\"#\n\\=é", max_size=80))
def test_every_character_has_a_kind_whatever_the_text(text: str) -> None:
    assert len(kinds_of(text)) == len(text)


def test_a_piece_has_the_kind_of_what_one_sees_first() -> None:
    start = CODE.index("        total")
    pieces = ["        total", " =", " total", " +", "\n"]
    kinds = kinds_of_pieces(CODE, start, pieces[:4])
    assert kinds == [Kind.IDENTIFIERS, Kind.LOGIC, Kind.IDENTIFIERS, Kind.LOGIC]
    assert kinds_of_pieces("x\n", 1, ["\n", ""]) == [Kind.SYNTAX, Kind.SYNTAX]


def test_tokens_of_a_completion_have_the_kinds_of_their_place(encoder: TemplateEncoder) -> None:
    split = Split("", "x = f(", "", "# end\n")
    written = [*encoder.encode("y)"), encoder.end]
    kinds = token_kinds(encoder, split, written)
    assert kinds[0] is Kind.IDENTIFIERS
    assert kinds[-1] is Kind.SYNTAX


@pytest.fixture
def pair(preset: Preset, encoder: TemplateEncoder) -> Pair:
    return Pair(make_model(preset.shape, 1).eval(), make_model(preset.shape, 2).eval(), encoder)


def test_a_completion_ends_with_its_stops_and_predictions_equal_drafting_token_by_token(pair: Pair) -> None:
    prompt = pair.encoder.encode_prompt("", "def f(", "")
    written = write_tokens(pair.target, prompt, 8)
    other = next(token for token in range(pair.encoder.vocab_size) if token not in written)
    stopped = write_tokens(pair.target, prompt, 8, stops=[other, written[3]])
    assert stopped == written[: written.index(written[3]) + 1]
    pair.target.generation_config.repetition_penalty = 1e9
    assert write_tokens(pair.target, prompt, 8) == written, "a model's own defaults are not the engine's"
    matches = draft_matches(pair, prompt, written)
    assert len(matches) == len(written) == 8
    for at, token in enumerate(written):
        with torch.inference_mode():
            logits = pair.draft(input_ids=torch.tensor([[*prompt, *written[:at]]])).logits[0, -1]
        assert matches[at] is (int(logits.argmax()) == token)


def test_a_model_predicts_itself(pair: Pair, source: str) -> None:
    pair_of_target = Pair(pair.target, pair.target, pair.encoder)
    splits = held_out_splits([source], 4)
    tally = measure(pair_of_target, splits, 6)
    assert tally.agreement == 1.0
    figures = offline_figures(4, {0.0: tally}).greedy
    assert figures.acceptance_by_length[4] == 1.0, "a draft over the end counts whole, as in the engine"
    assert figures.per_position[0] == 1.0
    assert sum(count for _, count in figures.by_kind.values()) == tally.num_tokens


def test_at_a_temperature_the_share_predicted_is_the_targets_probability_of_the_drafts_token(
    pair: Pair, source: str
) -> None:
    prompt = pair.encoder.encode_prompt("", "x", "")
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        chosen = int(pair.draft(input_ids=ids).logits[0, -1].argmax())
        theirs = torch.softmax(pair.target(input_ids=ids).logits[0, -1] / 0.05, dim=-1)
    torch.manual_seed(1)
    first = [write_tokens(pair.target, prompt, 1, 0.05)[0] for _ in range(400)]
    assert first.count(chosen) / 400 == pytest.approx(float(theirs[chosen]), abs=0.09)
    splits = held_out_splits([source], 2)
    assert measure(pair, splits, 4, 0.8) == measure(pair, splits, 4, 0.8), "the same seed"


def test_an_interval_is_as_wide_as_completions_differ() -> None:
    """Twenty completions of ten tokens, half with 4 and half with 6 predicted: a completion counts as one draw."""
    low, high = share_interval([4, 6] * 10, [10] * 20)
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.1 / sqrt(19), 0.5 + 1.96 * 0.1 / sqrt(19)))
    assert share_interval([5, 5, 5], [10, 10, 10]) == (0.5, 0.5)
    assert share_interval([5], [10]) == share_interval([], []) == (0.0, 1.0)
    tally = AcceptanceTally()
    for matches in ([True, True, False], [True, False, False], [True, True, True]):
        tally.add(matches, [Kind.LOGIC] * 3)
    assert tally.agreement == 6 / 9
    assert tally.agreement_interval == share_interval([2, 1, 3], [3, 3, 3])
    assert tally.acceptance(1) == AcceptanceCounts(4, (2,))
    assert tally.acceptance_interval(1) == share_interval([1, 0, 1], [1, 2, 1])


def test_the_report_shows_what_was_measured(tmp_path: Path) -> None:
    tally = AcceptanceTally()
    tally.add([True, True, False, True], [Kind.SYNTAX, Kind.LOGIC, Kind.LOGIC, Kind.IDIOMS])
    offline = offline_figures(1, {0.0: tally, 0.2: tally})
    counts = {0.0: AcceptanceCounts(10, (8, 4)), 0.2: AcceptanceCounts(10, (5, 1))}
    steps = (DecodeTimes(4.0, 1.0), DecodeTimes(5.0, 2.5))
    run = engine_run(counts, 0.9, 200.0, 100.0, steps)
    assert run.speedup == 2.0
    assert run.expected_speedup == pytest.approx(expected_speedup(12 / 18, 2, 0.375))
    Report(offline, EngineFigures((run,), (90.0, 110.0), steps), IdentityReport(1, ())).write(tmp_path / "report")
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["engine"]["runs"][0]["acceptance"] == {"0.0": 0.6, "0.2": 0.3}
    assert report["identity"]["share"] == 1.0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| logic | 50.0% | 50.0% | 2 |" in text
    assert "| 2 | 60.0% | 30.0% | 2.20 | 1.60 | 90.0% | 200 | 2.00 |" in text
    assert "of the target 4.00 and 5.00 ms, of the draft 1.00 and 2.50 ms" in text
    assert "1 of 1 greedy completions are the same" in text
    assert "In vLLM" not in Report(offline).render()
    assert len(offline.greedy.per_position) == MAX_DRAFT


def test_where_texts_differ_the_gap_is_that_of_the_targets_logits(pair: Pair) -> None:
    texts, others = [[3, 4, 7], [6], [3, 0]], [[3, 9], [6], [3, 9]]  # The last text ends earlier.
    found = compare(pair.target, [[1, 2], [5], [1]], texts, others)
    assert [(one.prompt, one.place) for one in found.differences] == [(0, 1), (2, 1)]
    for difference, ids, token in zip(found.differences, ([1, 2, 3], [1, 3]), (4, 0), strict=True):
        with torch.inference_mode():
            logits = pair.target(input_ids=torch.tensor([ids])).logits[0, -1]
        assert difference.gap_nats == pytest.approx(abs(float(logits[token] - logits[9])), rel=1e-4)
    assert found.share == pytest.approx(1 / 3)
    assert str(found).startswith("1 of 3 greedy completions are the same with the draft; where they differ")
    close, wide = (IdentityReport(1, (TextDifference(0, 1, gap),)) for gap in (0.1, 1.0))
    assert str(close).endswith("0.100 nats apart at most, which rounding to bfloat16 explains.")
    assert str(wide).endswith("1.000 nats apart at most, more than rounding to bfloat16 explains.")
    assert str(IdentityReport(1, ())) == "1 of 1 greedy completions are the same with the draft."


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
